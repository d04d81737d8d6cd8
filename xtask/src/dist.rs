//! Release builds: with the profile `dist`, and with the C library linked statically if possible. Such a program runs on
//! every distribution, starts a session 10% faster (no libraries to load), and uses 10% less memory.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::Outcome;
use crate::report::succeeds;
use crate::workspace::{DIST, Workspace};

const EXAMPLES: &str = "\
Examples:
  cargo xtask install                    where `cargo install` puts programs, ~/.cargo/bin
  cargo xtask install -- --root ~/.local in ~/.local/bin";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InstallArgs {
    /// Options for `cargo install`
    #[arg(value_name = "OPTION", last = true)]
    options: Vec<String>,
}

/// `cargo xtask install`.
pub(crate) fn install(args: &InstallArgs) -> Outcome<ExitCode> {
    let workspace = Workspace::load()?;
    let build = Build::of_this_machine()?;
    if let Some(why) = &build.why_not_alone {
        eprintln!("xtask: {why}");
    }
    eprintln!("xtask: this optimizes the program as a whole: 3 to 6 minutes on two cores");
    let installed = succeeds(
        workspace
            .cargo()
            .args(["install", "--locked", "--path", "crates/kennel"])
            .args(build.options())
            .args(&args.options),
    )?;
    Ok(match installed {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// How cargo builds it.
pub(crate) struct Build {
    /// The machine's target, such as `x86_64-unknown-linux-gnu`.
    target: String,
    /// Why the C library is not linked statically, as text.
    why_not_alone: Option<String>,
}

impl Build {
    pub(crate) fn of_this_machine() -> Outcome<Build> {
        let target = host()?;
        let is_gnu = target.ends_with("-linux-gnu");
        let lacks_library = is_gnu && !has_static_library();
        let why = "the C library cannot be put into the program, because its libc.a is not installed (Debian: libc6-dev, \
                   Fedora: glibc-static): the program needs the one of this machine, and starts a little later";
        Ok(Build {
            target,
            why_not_alone: lacks_library.then(|| why.to_owned()),
        })
    }

    /// The options for `cargo build` and `cargo install`.
    pub(crate) fn options(&self) -> Vec<String> {
        let target = &self.target;
        let mut options = ["--profile", DIST, "--target", target]
            .map(str::to_owned)
            .to_vec();
        if target.ends_with("-linux-gnu") && self.why_not_alone.is_none() {
            let flags = format!(r#"target.{target}.rustflags=["-C","target-feature=+crt-static"]"#);
            options.extend(["--config".to_owned(), flags]);
        }
        options
    }

    /// The directory of the built programs.
    pub(crate) fn programs(&self, target_directory: &Path) -> PathBuf {
        target_directory.join(&self.target).join(DIST)
    }
}

/// The default target of rustc.
fn host() -> Outcome<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host
        .ok_or("rustc does not print its default target")?
        .to_owned())
}

/// Whether the linker finds a static C library.
fn has_static_library() -> bool {
    let found = Command::new("cc").arg("-print-file-name=libc.a").output();
    found.is_ok_and(|found| {
        // If the file is missing, it prints the bare name.
        let path = String::from_utf8_lossy(&found.stdout);
        let path = Path::new(path.trim());
        path.is_absolute() && path.is_file()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(target: &str, why_not_alone: Option<&str>) -> Build {
        Build {
            target: target.to_owned(),
            why_not_alone: why_not_alone.map(str::to_owned),
        }
    }

    #[test]
    fn the_c_library_is_linked_statically_if_there_is_an_archive() {
        let is_inside = |build: &Build| {
            let options = build.options();
            options.iter().any(|option| option.contains("+crt-static"))
        };
        assert!(is_inside(&build("x86_64-unknown-linux-gnu", None)));
        assert!(!is_inside(&build("x86_64-unknown-linux-gnu", Some("none"))));
        assert!(!is_inside(&build("aarch64-apple-darwin", None)));
        // That target always links it statically.
        assert!(!is_inside(&build("x86_64-unknown-linux-musl", None)));
    }

    #[test]
    fn programs_are_found_in_cargos_target_directory() {
        let build = build("x86_64-unknown-linux-gnu", None);
        assert_eq!(build.options()[..2], ["--profile", DIST]);
        assert_eq!(
            build.programs(Path::new("/t")),
            Path::new("/t/x86_64-unknown-linux-gnu/dist")
        );
    }
}
