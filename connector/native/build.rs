//! Hash of the sources (`_native.SOURCES`), by which a test finds a core of other sources.

#![allow(clippy::disallowed_methods)] // may end the build

use std::path::PathBuf;
use std::{fs, io};

fn main() -> io::Result<()> {
    let named = ["Cargo.lock", "Cargo.toml", "build.rs"].map(PathBuf::from);
    let modules = fs::read_dir("src")?.map(|entry| entry.map(|found| found.path()));
    let mut files = modules.collect::<io::Result<Vec<_>>>()?;
    files.extend(named);
    files.sort();
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325; // FNV-1a
    for file in &files {
        println!("cargo::rerun-if-changed={}", file.display());
        for byte in fs::read(file)? {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rustc-env=RAFTLOG_SOURCES={hash:016x}");
    Ok(())
}
