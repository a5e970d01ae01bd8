//! The modes that misuse the process that a provider runs in, and are good providers otherwise.

use crate::Mode;
use ep_core::{Error, Result};
use std::fs::OpenOptions;
use std::io::Write;
use std::process::Command;
use std::time::Duration;

/// Called when an instance is made.
pub(crate) fn act(mode: &Mode) -> Result<()> {
    match &*mode.0 {
        "process.noise" => noise(),
        "process.orphan" => orphan(),
        "process.stray" => stray(),
        "process.lost" => {
            stray()?;
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        }
        "process.pipe" => pipe(),
        _ => Ok(()),
    }
}

/// Prints what might be taken for a message, and more than a pipe holds.
fn noise() -> Result<()> {
    println!("\"ended\"\n{{\"failed\":\"noise\"}}");
    let line = [b'x'; 1 << 16];
    (0..64).try_for_each(|_| std::io::stderr().write_all(&line)).map_err(failed)
}

/// Starts a process that outlives this one and holds its pipes open.
fn orphan() -> Result<()> {
    let child = Command::new("sleep").arg("600").spawn().map_err(failed)?;
    // Nobody waits for it.
    std::mem::forget(child);
    Ok(())
}

/// Starts processes that leave the group of this one: one in a session of its own, which has a child, and one that has
/// lost its parent besides, as daemons do.
fn stray() -> Result<()> {
    let child = Command::new("setsid").args(["sh", "-c", "sleep 600 & wait"]).spawn().map_err(failed)?;
    // Nobody waits for it.
    std::mem::forget(child);
    let started = Command::new("sh").args(["-c", "setsid sleep 600 &"]).status().map_err(failed)?;
    if started.success() { Ok(()) } else { Err(Error::internal(format!("hostile process: sh: {started}"))) }
}

/// Writes into every pipe that it finds, its standard ones excepted.
fn pipe() -> Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd").map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let number = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.parse::<u32>().ok());
        let is_pipe = std::fs::read_link(&path).is_ok_and(|to| to.to_string_lossy().starts_with("pipe:"));
        if is_pipe && number.is_some_and(|n| n > 2) {
            let mut pipe = OpenOptions::new().write(true).open(&path).map_err(failed)?;
            pipe.write_all(b"this is no message\n").map_err(failed)?;
        }
    }
    Ok(())
}

fn failed(e: std::io::Error) -> Error {
    Error::internal(format!("hostile process: {e}"))
}
