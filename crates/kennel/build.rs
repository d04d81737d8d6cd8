//! Makes the unwinder a part of the program, where the compiler has it as an archive.
//!
//! Else the program is linked to a library for it (`libgcc_s`), which is looked for, mapped and relocated at every start,
//! before anything is unwound that hardly ever is: a tenth of the time a session takes to begin. Where there is no such
//! archive, or it is built for another machine, all is as usual.

use std::env;
use std::path::Path;
use std::process::Command;

const UNWINDER: &str = "gcc_eh";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Some(dir) = dir_of_the_unwinder() {
        println!("cargo:rustc-link-search=native={dir}");
        println!("cargo:rustc-link-lib=static={UNWINDER}");
    }
}

fn dir_of_the_unwinder() -> Option<String> {
    let is_ours = env::var("HOST").ok()? == env::var("TARGET").ok()?;
    let linked = env::var("CARGO_CFG_TARGET_OS").ok()? == "linux"
        && env::var("CARGO_CFG_TARGET_ENV").ok()? == "gnu";
    let features = env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    let anyway = features.split(',').any(|feature| feature == "crt-static");
    if !is_ours || !linked || anyway {
        return None;
    }
    let asked = Command::new("cc")
        .arg(format!("-print-file-name=lib{UNWINDER}.a"))
        .output()
        .ok()?;
    let answer = String::from_utf8(asked.stdout).ok()?;
    let archive = Path::new(answer.trim());
    // One that is not found is answered by its bare name.
    let dir = archive.is_absolute().then(|| archive.parent())??;
    archive.is_file().then(|| dir.display().to_string())
}
