//! What was measured, as lines of JSON in a file, so that an interrupted comparison goes on where it stopped.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

/// The time of one call.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Figure {
    /// The middle one of all batches.
    pub median_us: f64,
    /// The shortest.
    pub min_us: f64,
    /// Batches.
    pub runs: usize,
}

/// One row in one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    /// The row's.
    pub id: String,
    /// Threads that everyone may use.
    pub threads: usize,
    /// Which of the processes with these threads it was.
    pub process: usize,
    /// CPUs that other processes kept busy meanwhile.
    pub foreign: f64,
    /// Provider and factory.
    pub by: Option<String>,
    /// Ours; absent where the device does not have the op.
    pub ours: Option<Figure>,
    /// The machine's limit for the row, in microseconds; absent where nobody asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_us: Option<f64>,
    /// Each peer that computes the row.
    pub peers: BTreeMap<String, Figure>,
    /// Why there is no figure: of a peer, or of `ours`.
    pub absent: BTreeMap<String, String>,
    /// Peers whose result is another one, and where. Their figures do not count.
    pub differs: BTreeMap<String, String>,
}

/// What all lines of a file have in common.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Header {
    /// The providers' files with their sizes and times of change: figures of another build do not count.
    pub builds: Vec<String>,
    /// The peers' versions.
    pub versions: BTreeMap<String, String>,
    /// Whether it was only a short look.
    pub quick: bool,
}

/// The file.
pub struct Record {
    path: PathBuf,
    file: File,
    /// All lines so far.
    pub lines: Vec<Measured>,
}

impl Record {
    /// Opens a file and takes over what it holds, if that was measured under the same header and `fresh` is not
    /// set; else the file is begun anew. Also where what it held is kept, if it held something, understood or not.
    pub fn open(path: &Path, header: &Header, fresh: bool) -> Result<(Record, Option<PathBuf>), String> {
        let fail = |e: std::io::Error| format!("{}: {e}", path.display());
        let known = read(path);
        let matches = known.as_ref().is_some_and(|(h, _)| h == header) && !fresh;
        let mut options = OpenOptions::new();
        if matches {
            let file = options.append(true).open(path).map_err(fail)?;
            let lines = known.map(|k| k.1).unwrap_or_default();
            let mut record = Record { path: path.to_owned(), file, lines };
            // What follows would be part of a line that was cut off.
            if !std::fs::read(path).map_err(fail)?.ends_with(b"\n") {
                record.file.write_all(b"\n").map_err(fail)?;
            }
            return Ok((record, None));
        }
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(fail)?;
        }
        let mut old = None;
        let holds = match &known {
            Some((_, lines)) => !lines.is_empty(),
            None => std::fs::metadata(path).is_ok_and(|file| file.len() > 0),
        };
        if holds {
            let name = free_name(path);
            std::fs::rename(path, &name).map_err(fail)?;
            old = Some(name);
        }
        let file = options.write(true).create(true).truncate(true).open(path).map_err(fail)?;
        let mut record = Record { path: path.to_owned(), file, lines: Vec::new() };
        record.write(header)?;
        Ok((record, old))
    }

    fn write(&mut self, line: &impl Serialize) -> Result<(), String> {
        let mut text = serde_json::to_string(line).map_err(|e| e.to_string())?;
        text.push('\n');
        self.file.write_all(text.as_bytes()).map_err(|e| format!("{}: {e}", self.path.display()))
    }

    /// Adds a line.
    pub fn add(&mut self, line: Measured) -> Result<(), String> {
        self.write(&line)?;
        self.lines.push(line);
        Ok(())
    }

    /// Whether this was measured.
    pub fn has(&self, id: &str, threads: usize, process: usize) -> bool {
        self.lines.iter().any(|l| l.id == id && l.threads == threads && l.process == process)
    }
}

/// A name beside the file that nothing has yet.
fn free_name(path: &Path) -> PathBuf {
    let name = |number: usize| {
        let mut name = path.as_os_str().to_owned();
        name.push(".old");
        if number > 1 {
            name.push(format!(".{number}"));
        }
        PathBuf::from(name)
    };
    // A link to nothing counts, too: renaming would replace it.
    (1..).map(name).find(|name| name.symlink_metadata().is_err()).expect("there are numbers enough")
}

/// Header and lines; lines that were cut off are left out. `None` where there is no such file, or no header in it.
pub fn read(path: &Path) -> Option<(Header, Vec<Measured>)> {
    let mut lines = BufReader::new(File::open(path).ok()?).lines().map_while(Result::ok);
    let header = serde_json::from_str(&lines.next()?).ok()?;
    Some((header, lines.filter_map(|l| serde_json::from_str(&l).ok()).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of the test's own, which is not there.
    fn place(test: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("ep-compare-{test}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        path.join("record.jsonl")
    }

    fn header(build: &str) -> Header {
        Header { builds: vec![build.into()], ..Header::default() }
    }

    fn line(id: &str) -> Measured {
        Measured { id: id.into(), threads: 1, ..Measured::default() }
    }

    #[test]
    fn no_record_is_lost() {
        let path = place("kept");
        // Half an hour under one header, a line under the next, and something else.
        let mut kept = Vec::new();
        for (build, ids) in [("a", &["x", "y"][..]), ("b", &["x"]), ("c", &[])] {
            let (mut record, old) = Record::open(&path, &header(build), false).unwrap();
            kept.extend(old);
            ids.iter().for_each(|id| record.add(line(id)).unwrap());
        }
        std::fs::write(&path, "not a header\n").unwrap();
        kept.extend(Record::open(&path, &header("d"), true).unwrap().1);
        let lines = |path: &PathBuf| read(path).map(|(h, lines)| (h.builds.concat(), lines.len()));
        assert_eq!(lines(&kept[0]), Some(("a".into(), 2)));
        assert_eq!(lines(&kept[1]), Some(("b".into(), 1)));
        assert_eq!(std::fs::read_to_string(&kept[2]).unwrap(), "not a header\n");
        assert_eq!(kept.len(), 3, "{kept:?}");
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_line_that_was_cut_off_costs_no_other() {
        let path = place("cut");
        let header = header("a");
        let (mut record, _) = Record::open(&path, &header, false).unwrap();
        record.add(line("x")).unwrap();
        record.file.write_all(b"{\"id\": \"cut").unwrap();
        drop(record);
        for (known, id) in [(1, "y"), (2, "z")] {
            let (mut record, old) = Record::open(&path, &header, false).unwrap();
            assert_eq!((record.lines.len(), old), (known, None));
            record.add(line(id)).unwrap();
        }
        assert_eq!(read(&path).unwrap().1.iter().map(|l| l.id.as_str()).collect::<String>(), "xyz");
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_record_goes_on_under_the_same_header() {
        let path = place("same");
        let header = header("a");
        let (mut record, lost) = Record::open(&path, &header, true).unwrap();
        assert!(lost.is_none() && record.lines.is_empty());
        record.add(line("x")).unwrap();
        drop(record);
        let (mut record, lost) = Record::open(&path, &header, false).unwrap();
        assert!(lost.is_none() && record.has("x", 1, 0) && !record.has("x", 2, 0) && !record.has("y", 1, 0));
        record.add(line("y")).unwrap();
        drop(record);
        let other = self::header("b");
        assert_eq!(Record::open(&path, &header, false).unwrap().0.lines.len(), 2);
        let (record, lost) = Record::open(&path, &other, false).unwrap();
        assert!(record.lines.is_empty());
        // A measurement takes half an hour.
        let old = lost.unwrap();
        assert_eq!(read(&old).map(|(h, lines)| (h == header, lines.len())), Some((true, 2)));
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
