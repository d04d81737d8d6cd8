//! The testbed: packages from npm and PyPI that tests need, at pinned versions, in `target/testbed`; and the programs that
//! the benchmark `peers` compares Kennel with, in `target/peers`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Outcome;
use crate::report::succeeds;
use crate::workspace::Workspace;

/// The variable with the directory for tests.
pub(crate) const VARIABLE: &str = "TESTKIT_BED";

const NPM: &[&str] = &[
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/server-memory@2026.8.31",
    "@modelcontextprotocol/sdk@1.32.2",
    // The second generation of the SDK, for both eras.
    "@modelcontextprotocol/client@2.4.0",
    "@modelcontextprotocol/inspector@2.12.0",
];
const PYPI: &[&str] = &["mcp==2.3.0"];

/// The variable with the directory for the benchmark.
pub(crate) const PEERS_VARIABLE: &str = "KENNEL_BENCH_PEERS";
const NPM_PEERS: &[&str] = &["supergateway@4.0.0", "mcp-remote@0.15.1"];
/// Each in a separate environment, because they need different versions of `mcp`.
const PYPI_PEERS: &[&str] = &["mcp-proxy==0.13.0"];
const FASTMCP: &[&str] = &["fastmcp==3.4.10"];
const CARGO_PEERS: &[&str] = &["rmcp-mux@0.4.0"];

/// Installs missing packages; `None` if a tool for that is missing, which preflight has printed.
pub(crate) fn install(workspace: &Workspace) -> Outcome<Option<PathBuf>> {
    let bed = workspace.target.join("testbed");
    let npm = once(&bed.join("npm"), NPM, npm_install)?;
    let python = once(&bed.join("python"), PYPI, pip_install)?;
    Ok((npm && python).then_some(bed))
}

/// The same for the peers. One that cannot be installed is left out, and the benchmark prints that.
pub(crate) fn install_peers(workspace: &Workspace) -> Outcome<PathBuf> {
    let peers = workspace.target.join("peers");
    let parts: [(&str, &[&str], Installer); 4] = [
        ("npm", NPM_PEERS, npm_install),
        ("python", PYPI_PEERS, pip_install),
        ("fastmcp", FASTMCP, pip_install),
        ("cargo", CARGO_PEERS, cargo_install),
    ];
    for (part, packages, install) in parts {
        match once(&peers.join(part), packages, install) {
            Ok(true) => {}
            Ok(false) => eprintln!("cannot install {}", packages.join(", ")),
            Err(error) => eprintln!("cannot install {}: {error}", packages.join(", ")),
        }
    }
    Ok(peers)
}

type Installer = fn(&Path, &[&str]) -> Outcome<bool>;

/// Runs `install` in an empty `dir`, unless an earlier run did that with the same packages.
fn once(
    dir: &Path,
    packages: &[&str],
    install: impl Fn(&Path, &[&str]) -> Outcome<bool>,
) -> Outcome<bool> {
    let (stamp, wanted) = (dir.join("installed"), packages.join("\n"));
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(true);
    }
    // Not on stdout, which may be a program's output.
    eprintln!("installing {} into {}", packages.join(", "), dir.display());
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => fs::create_dir_all(dir)?,
    }
    let installed = install(dir, packages)?;
    if installed {
        fs::write(stamp, wanted)?;
    }
    Ok(installed)
}

#[expect(clippy::disallowed_methods, reason = "a task may block on its output")]
fn npm_install(dir: &Path, packages: &[&str]) -> Outcome<bool> {
    fs::write(dir.join("package.json"), r#"{"private":true}"#)?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--loglevel=error"]);
    succeeds(npm.args(packages).current_dir(dir).stdout(io::stderr()))
}

fn pip_install(dir: &Path, packages: &[&str]) -> Outcome<bool> {
    let made = succeeds(Command::new("python3").args(["-m", "venv"]).arg(dir))?;
    let mut pip = Command::new(dir.join("bin/python"));
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]);
    Ok(made && succeeds(pip.args(packages))?)
}

/// Builds it from source, which takes minutes: with low priority, and without features for terminals.
fn cargo_install(dir: &Path, packages: &[&str]) -> Outcome<bool> {
    let mut nice = Command::new("nice");
    nice.args(["-n", "10", "cargo", "install", "--locked", "--root"])
        .arg(dir)
        .args(["--no-default-features", "--features", "cli"])
        .args(packages)
        .env("CARGO_TARGET_DIR", dir.join("build"));
    let installed = succeeds(&mut nice)?;
    // Only the programs are needed.
    let _ = fs::remove_dir_all(dir.join("build"));
    Ok(installed)
}
