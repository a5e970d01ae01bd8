//! What came of a check.

use std::fmt::Write;

/// One run of the kit on a defect.
#[derive(Debug)]
pub struct Found {
    /// Which defect, as an index.
    pub defect: usize,
    /// The seed.
    pub seed: u64,
    /// The case that failed, and its message.
    pub case: Option<(String, String)>,
}

/// All runs.
#[derive(Debug)]
pub struct Record {
    /// Names and areas.
    pub defects: Vec<(String, String)>,
    /// In the order of the columns.
    pub seeds: Vec<u64>,
    /// In any order.
    pub found: Vec<Found>,
}

impl Record {
    fn case(&self, defect: usize, seed: u64) -> Option<&(String, String)> {
        self.found.iter().find(|f| f.defect == defect && f.seed == seed)?.case.as_ref()
    }

    /// Whether each defect was found at each seed.
    pub fn all_found(&self) -> bool {
        (0..self.defects.len()).all(|d| self.seeds.iter().all(|s| self.case(d, *s).is_some()))
    }

    /// By area, in the order of the list: its name, its defects, and those found at every seed.
    fn areas(&self) -> Vec<(&str, usize, usize)> {
        let mut areas: Vec<(&str, usize, usize)> = Vec::new();
        for (d, (_, area)) in self.defects.iter().enumerate() {
            if areas.last().is_none_or(|(name, ..)| name != area) {
                areas.push((area, 0, 0));
            }
            let found = self.seeds.iter().all(|s| self.case(d, *s).is_some());
            if let Some((_, all, by)) = areas.last_mut() {
                *all += 1;
                *by += usize::from(found);
            }
        }
        areas
    }

    /// For people at a terminal: what was not found, with the score of each area.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |s: String| {
            text.push_str(&s);
            text.push('\n');
        };
        for (d, (id, area)) in self.defects.iter().enumerate() {
            let missed: Vec<String> =
                self.seeds.iter().filter(|s| self.case(d, **s).is_none()).map(u64::to_string).collect();
            if !missed.is_empty() {
                line(format!("not found: {id} ({area}) with seed {}", missed.join(", ")));
            }
        }
        for (area, all, found) in self.areas() {
            line(format!("{area:12} {found} of {all}"));
        }
        text
    }

    /// A table of all defects.
    pub fn markdown(&self) -> String {
        let mut text = String::from("| defect | area |");
        for seed in &self.seeds {
            // Writing to a text cannot fail.
            let _ok = write!(text, " seed {seed} |");
        }
        text.push_str(" by |\n|---|---|");
        text.push_str(&"---|".repeat(self.seeds.len() + 1));
        text.push('\n');
        for (d, (id, area)) in self.defects.iter().enumerate() {
            let cases: Vec<_> = self.seeds.iter().map(|s| self.case(d, *s)).collect();
            let marks: String = cases.iter().map(|c| if c.is_some() { " yes |" } else { " no |" }).collect();
            let by =
                cases.into_iter().flatten().next().map_or(String::new(), |(name, _)| format!("`{name}`"));
            let _ok = writeln!(text, "| `{id}` | {area} |{marks} {by} |");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let defects = [("a1", "a"), ("a2", "a"), ("b1", "b")];
        let case = |n: &str| Some((n.to_owned(), "wrong".to_owned()));
        Record {
            defects: defects.map(|(id, area)| (id.to_owned(), area.to_owned())).to_vec(),
            seeds: vec![1, 7],
            found: vec![
                Found { defect: 2, seed: 7, case: case("x/2") },
                Found { defect: 0, seed: 1, case: case("x/0") },
                Found { defect: 0, seed: 7, case: case("x/1") },
                Found { defect: 2, seed: 1, case: None },
                Found { defect: 1, seed: 1, case: None },
            ],
        }
    }

    #[test]
    fn what_was_missed_is_told_by_seed_and_area() {
        let text = record().text();
        assert!(text.contains("not found: a2 (a) with seed 1, 7\n"), "{text}");
        assert!(text.contains("not found: b1 (b) with seed 1\n") && !text.contains("a1"), "{text}");
        assert!(text.contains("a            1 of 2\nb            0 of 1\n"), "{text}");
        assert!(!record().all_found());
        let mut one = record();
        one.defects.truncate(1);
        assert!(one.all_found());
    }

    #[test]
    fn the_table_has_a_line_for_each_defect() {
        let table = record().markdown();
        assert!(
            table.starts_with("| defect | area | seed 1 | seed 7 | by |\n|---|---|---|---|---|\n"),
            "{table}"
        );
        assert!(table.contains("| `a1` | a | yes | yes | `x/0` |\n"), "{table}");
        assert!(table.contains("| `a2` | a | no | no |  |\n| `b1` | b | no | yes | `x/2` |\n"), "{table}");
    }
}
