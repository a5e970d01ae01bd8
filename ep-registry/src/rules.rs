//! Whether `[select]` names what there is. A config alone cannot tell: instances are also found in folders or linked in,
//! and ops come with providers.

use crate::config::Config;
use crate::document::nearest;
use crate::registry::Registry;
use crate::report::LoadReport;
use ep_core::{Error, Result};

/// Warnings of rules for ops that nothing knows: an op may be one of a vendor whose provider is not here.
///
/// # Errors
/// `NotFound` for an instance that is not there; with file, line and column where the rule is of a text.
pub(crate) fn check(config: &Config, report: &LoadReport, registry: &Registry) -> Result<Vec<String>> {
    // Files that were skipped without getting a name have this one.
    let instances: Vec<_> =
        report.entries.iter().map(|e| e.instance.as_str()).filter(|name| *name != "-").collect();
    let mut warnings = Vec::new();
    for (op, order) in &config.select {
        if let Some(unknown) = order.iter().find(|i| !instances.contains(&i.as_str())) {
            let guess = nearest(unknown, &instances)
                .map_or("there".to_owned(), |near| format!("did you mean `{near}`? There"));
            let message = format!(
                "[select] {op}: no provider instance is called `{unknown}`; {guess} are {}",
                if instances.is_empty() { "none".to_owned() } else { instances.join(", ") }
            );
            return Err(Error::not_found(config.source.at_instance(op, unknown, message)));
        }
        if let Some(e) = registry.op(op).err().filter(|_| op != "*") {
            warnings.push(config.source.at_op(op, format!("[select] {op}: {}", e.message())));
        }
    }
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Entry, Status};
    use ep_core::Code;
    use std::path::Path;

    fn checked(select: &str) -> Result<Vec<String>> {
        let entry = |instance: &str| Entry {
            instance: instance.to_owned(),
            path: None,
            status: Status::Skipped,
            reason: String::new(),
            code: None,
            provider: None,
            devices: Vec::new(),
            required: false,
        };
        let config = Config::from_str(&format!("# mine\n[select]\n{select}\n"), Path::new("/"))?;
        let report =
            LoadReport { entries: ["acme", "-", "cpu"].map(entry).to_vec(), ..LoadReport::default() };
        check(&config, &report, &Registry::new())
    }

    #[test]
    fn an_instance_that_is_not_there_is_shown_in_its_line() {
        let error = checked("softmax = [\"cpu\", \"acm\"]").unwrap_err();
        assert_eq!(error.code(), Code::NotFound);
        assert_eq!(
            error.message(),
            "config:3:19: [select] softmax: no provider instance is called `acm`; did you mean `acme`? There are acme, \
             cpu\n  |\n3 | softmax = [\"cpu\", \"acm\"]\n  |                   ^^^^^"
        );
        let error = checked("\"*\" = [\"nobody\"]").unwrap_err();
        assert!(error.message().contains("`nobody`; there are acme, cpu\n"), "{error}");
    }

    #[test]
    fn a_rule_for_an_op_that_nothing_knows_is_a_warning_with_its_place() {
        let warnings = checked("cast = [\"cpu\"]\n\"*\" = [\"cpu\"]\nsoftmaks = [\"cpu\"]").unwrap();
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].starts_with("config:5:1: [select] softmaks: "), "{warnings:?}");
        assert!(warnings[0].contains("`softmaks`") && !warnings[0].contains('\n'), "{warnings:?}");
        // A rule that was set in code has no place.
        let mut config = Config::default();
        config.select.insert("softmaks".into(), Vec::new());
        let warnings = check(&config, &LoadReport::default(), &Registry::new()).unwrap();
        assert!(warnings[0].starts_with("[select] softmaks: "), "{warnings:?}");
    }
}
