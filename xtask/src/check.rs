//! Whether a description can be: changes to it may leave structs that no compiler takes.

use crate::model::{Abi, Field, STATUS, Slot, Struct, base_type};

impl Abi {
    /// Whether each struct is one that C has, and each of an op as its schema says.
    ///
    /// # Errors
    /// The struct and what is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        for s in self.structs.iter().filter(|s| s.frozen) {
            self.check_frozen(s, &mut vec![&s.name])?;
        }
        for name in self.growable() {
            self.check_fields(&name, &self.fields_of(&name))?;
        }
        for op in &self.ops {
            let (desc, args) = (format!("Ep{}Desc", op.type_name()), format!("Ep{}Args", op.type_name()));
            let (slots, size, _) = op.place_desc().map_err(|e| format!("{desc}: {e}"))?;
            self.check_slots(&desc, &op.desc_fields(), &slots, size)?;
            let (slots, size) = op.args_layout();
            self.check_slots(&args, &op.arg_fields(), &slots, size)?;
        }
        Ok(())
    }

    /// An op's struct, whose fields are where its schema says.
    fn check_slots(&self, name: &str, fields: &[Field], slots: &[Slot], size: u64) -> Result<(), String> {
        self.check_fields(name, fields)?;
        let layout = self.place(name, fields)?;
        let at = |s: &Slot| {
            layout.fields.iter().any(|p| p.field.name == s.name && (p.offset, p.size) == (s.offset, s.size))
        };
        match slots.iter().find(|s| !at(s)) {
            Some(s) => Err(format!("{name}.{} does not lie where the schema of the op has it", s.name)),
            None if layout.size != size => {
                Err(format!("{name} has {} bytes, and {size} in the schema of the op", layout.size))
            }
            None => Ok(()),
        }
    }

    /// A frozen struct behind those that it leads to, whose layouts go into its own: none of them may lead back to it. A
    /// pointer to itself does no harm.
    fn check_frozen<'a>(&'a self, s: &'a Struct, path: &mut Vec<&'a str>) -> Result<(), String> {
        for f in &s.fields {
            for ty in self.types_of(f) {
                let inner = self.structs.iter().find(|s| s.frozen && s.name == base_type(ty));
                let Some(inner) = inner.filter(|inner| inner.name != s.name || base_type(ty) == ty) else {
                    continue;
                };
                if path.contains(&inner.name.as_str()) {
                    return Err(format!("{}.{}: {} would be part of itself", s.name, f.name, inner.name));
                }
                path.push(&inner.name);
                self.check_frozen(inner, path)?;
                path.pop();
            }
        }
        self.check_fields(&s.name, &s.fields)
    }

    /// Names of C that differ, and places without implicit padding.
    fn check_fields(&self, owner: &str, fields: &[Field]) -> Result<(), String> {
        for (i, Field { name, .. }) in fields.iter().enumerate() {
            let letters = name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric());
            if !letters || name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
                return Err(format!("{owner}: `{name}` is no name of a field"));
            }
            if fields[..i].iter().any(|f| f.name == *name) {
                return Err(format!("{owner}: there would be two fields `{name}`"));
            }
        }
        self.place(owner, fields).map(|_| ())
    }

    /// The types in a field, those of functions and callbacks included.
    fn types_of<'a>(&'a self, f: &'a Field) -> Vec<&'a str> {
        let own = f.args.iter().flatten().map(|[_, t]| t).chain(&f.returns).chain(&f.ty);
        let called = self.callback.iter().filter(|c| own.clone().any(|ty| *ty == c.name));
        let of_called = called.clone().flat_map(|c| c.args.iter().map(|[_, t]| t));
        // What returns nothing else returns a status.
        let status = f.is_function() && f.returns.is_none() || called.count() > 0;
        own.clone().chain(of_called).map(String::as_str).chain(status.then_some(STATUS)).collect()
    }
}
