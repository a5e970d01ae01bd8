//! One operator in each file, named as its primitive where there is one.
