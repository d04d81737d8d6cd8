//! Before the tests: checks which external tools exist, for each uid that runs tests.
//!
//! A test without its tool skips itself. So missing tools are listed here, and with `CI=true` they are an error.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::{Outcome, unprivileged};

/// A tool that tests look up by name.
struct Tool {
    name: &'static str,
    /// What is not tested without it.
    used_for: &'static str,
}

const TOOLS: &[Tool] = &[
    Tool {
        name: "flock",
        used_for: "locks of older servers",
    },
    Tool {
        name: "lsof",
        used_for: "the command that finds a lock holder with unknown pid",
    },
    Tool {
        name: "node",
        used_for: "apps that give their servers a socket for stdin",
    },
    Tool {
        name: "npm",
        used_for: "servers started through `npm exec`",
    },
    Tool {
        name: "python3",
        used_for: "processes in states that a Rust program does not get into",
    },
    Tool {
        name: "script",
        used_for: "a program below `script`, which `kennel doctor` must leave alone",
    },
    Tool {
        name: "setsid",
        used_for: "servers in a new session",
    },
    Tool {
        name: "systemd-tmpfiles",
        used_for: "files that cleaners of temporary files must not remove",
    },
    Tool {
        name: "tmux",
        used_for: "a server of tmux, which `kennel doctor` must leave alone",
    },
    Tool {
        name: "unshare",
        used_for: "pid namespaces and being pid 1",
    },
];

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Prints the available tools, and returns a line for each missing one. With `CI=true`, that is an error.
pub(crate) fn check() -> Outcome<Vec<String>> {
    println!("\n── preflight ──");
    let mut gaps = Vec::new();
    for Tool { name, used_for } in TOOLS {
        match look_for(name) {
            Ok(version) => println!("{name:>8}  {version}"),
            Err(why) => gaps.push(format!("{name} {why}: NOT TESTED: {used_for}")),
        }
    }
    if !is_root() {
        gaps.push("not root: NOT TESTED: tests that need root, and a second uid".to_owned());
    }
    for gap in &gaps {
        println!("{gap}");
    }
    if in_ci() && !gaps.is_empty() {
        return Err(
            "CI=true requires all tests: install the missing tools, and run as root".into(),
        );
    }
    Ok(gaps)
}

/// The C++ compiler for the fuzzing engine: `CXX`, or `c++`.
pub(crate) fn cpp_compiler() -> Outcome<String> {
    cpp_compiler_named(&std::env::var("CXX").unwrap_or_default())
}

fn cpp_compiler_named(name: &str) -> Outcome<String> {
    // Options may follow.
    let program = name.split_whitespace().next().unwrap_or("c++");
    version(program, None).ok_or_else(|| {
        format!(
            "{program} is missing, the compiler of C++ that the fuzzing engine is built with: install g++ or \
             clang, or name one with CXX. NOT TESTED: random lines and schedules"
        )
        .into()
    })
}

/// The version of a tool, if every pass can run it.
fn look_for(tool: &str) -> Result<String, String> {
    let version = version(tool, None).ok_or("is missing")?;
    if is_root() && self::version(tool, Some(unprivileged::UID)).is_none() {
        return Err(format!("cannot be run by uid {}", unprivileged::UID));
    }
    Ok(version)
}

/// The output of `<tool> --version`, run as `uid` if given; `None` if it cannot be run.
fn version(tool: &str, uid: Option<u32>) -> Option<String> {
    let mut command = Command::new(tool);
    command
        .arg("--version")
        .current_dir("/")
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    if let Some(uid) = uid {
        command.uid(uid).gid(uid).env("HOME", "/nonexistent");
    }
    let output = command.output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    // Some tools do not know the option, but they exist.
    Some(text.lines().next().unwrap_or("is there").to_owned())
}

pub(crate) fn in_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true" || value == "1")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_tool_that_a_test_uses_is_checked_before() {
        let xtask = std::env::var("CARGO_MANIFEST_DIR").expect("set for every test");
        let mut looked_up = Vec::new();
        for room in ["crates", "examples", "bench"] {
            lookups(&Path::new(&xtask).join("..").join(room), &mut looked_up);
        }
        assert!(!looked_up.is_empty(), "no lookup found: was it renamed?");
        for name in looked_up {
            assert!(
                TOOLS.iter().any(|tool| tool.name == name),
                "a test looks up {name}, which TOOLS does not list"
            );
        }
    }

    /// Collects the names in all `tool("…")` below `dir`.
    fn lookups(dir: &Path, names: &mut Vec<String>) {
        for entry in fs::read_dir(dir).expect("a directory of the workspace") {
            let path = entry.expect("a directory of the workspace").path();
            if path.is_dir() {
                lookups(&path, names);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let source = fs::read_to_string(&path).expect("a source file");
                let calls = source.split("tool(\"").skip(1);
                names.extend(calls.filter_map(|call| Some(call.split_once('"')?.0.to_owned())));
            }
        }
    }

    #[test]
    fn a_missing_compiler_is_named_with_a_remedy() {
        let missing = cpp_compiler_named("no-such-compiler -O2").expect_err("it is missing");
        let missing = missing.to_string();
        assert!(
            missing.starts_with("no-such-compiler is missing"),
            "{missing}"
        );
        assert!(missing.contains("install g++ or clang"), "{missing}");
        assert!(cpp_compiler_named("sh -x").is_ok());
    }

    #[test]
    fn a_tool_that_cannot_be_started_is_missing() {
        assert_eq!(look_for("no-such-tool"), Err("is missing".to_owned()));
        assert!(look_for("sh").is_ok());
    }
}
