//! The library's own name, so that programs that were linked by a path find it wherever it is.

fn main() {
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libep_host.so");
    }
}
