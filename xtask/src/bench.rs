//! `cargo xtask bench`: runs `kennel-bench` with the `dist` build of Kennel.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use kennel_sys::Signal;
use kennel_sys::signals::Signals;

use crate::dist::Build;
use crate::report::succeeds;
use crate::workspace::Workspace;
use crate::{Outcome, testbed};

/// Benchmarks that need programs from outside the workspace.
const BESIDE_OTHERS: [&str; 2] = ["peers", "long-lines"];

const EXAMPLES: &str = "\
Examples:
  cargo xtask bench                      all of it, in less than 20 minutes: tables, and PASS or FAIL for each
                                         bound; JSON, Markdown and plots in target/bench
  cargo xtask bench --quick              a few rounds of it in less than two minutes, too short to judge by
  cargo xtask bench peers                beside others who do this; installs them first, which takes minutes
  cargo xtask bench peers --server notes on one of the three servers
  cargo xtask bench former --against HEAD~3   this build against a former one, which is built first
  cargo xtask bench round-trip --json    one of them, for a program
  cargo xtask bench -- --help            which there are, and what they measure";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A benchmark and its options; none: all of them
    #[arg(
        value_name = "NAME",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    names: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Outcome<ExitCode> {
    let workspace = Workspace::load()?;
    // The benchmark, and the programs that it measures.
    let programs = ["kennel-bench", "kennel-testkit", "notes", "kennel"];
    let packages = programs.iter().flat_map(|program| ["--package", program]);
    let build = Build::of_this_machine()?;
    let built = succeeds(
        workspace
            .cargo()
            .args(["build", "--bins"])
            .args(build.options())
            .args(packages),
    )?;
    // Ctrl-C is for the benchmark: it ends its processes, and we wait for that.
    let _signals = Signals::catch(&[Signal::INT])?;
    // Built together with the others: building it alone would compile it again.
    let mut run = Command::new(build.programs(&workspace.target).join("kennel-bench"));
    workspace.settle(&mut run);
    run.args(with_former_build(&workspace, &args.names)?);
    let name = args.names.first().filter(|name| !name.starts_with('-'));
    if name.is_none() && !args.names.iter().any(|word| word == "--out") {
        run.arg("--out").arg(workspace.target.join("bench"));
    }
    if built && name.is_none_or(|name| BESIDE_OTHERS.contains(&&**name)) {
        if let Some(bed) = bed(&workspace)? {
            run.env(testbed::VARIABLE, bed);
        }
        run.env(testbed::PEERS_VARIABLE, peers(&workspace)?);
    }
    let passed = built && succeeds(&mut run)?;
    Ok(if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The arguments, with a commit after `--against` replaced by the `kennel` that is built from it.
fn with_former_build(workspace: &Workspace, names: &[String]) -> Outcome<Vec<String>> {
    let mut names = names.to_vec();
    let against = names.iter().position(|word| word == "--against");
    if let Some(former) = against.and_then(|at| names.get_mut(at + 1))
        && !Path::new(former).is_file()
    {
        *former = former_build(workspace, former)?.display().to_string();
    }
    Ok(names)
}

/// The `kennel` of a commit, built from an export of it below `target/`.
fn former_build(workspace: &Workspace, commit: &str) -> Outcome<PathBuf> {
    let mut resolve = Command::new("git");
    workspace.settle(&mut resolve);
    let object = format!("{commit}^{{commit}}");
    let resolved = resolve.args(["rev-parse", "--verify", &object]).output()?;
    if !resolved.status.success() {
        return Err(format!("`{commit}` is neither a program nor a commit").into());
    }
    let hash = String::from_utf8(resolved.stdout)?.trim().to_owned();
    let source = workspace.target.join("former").join(&hash);
    let build = workspace.target.join("former/build");
    let program = source.join("kennel");
    if program.is_file() {
        return Ok(program);
    }
    eprintln!("xtask: building kennel of {hash}, which takes some minutes");
    std::fs::create_dir_all(&source)?;
    let archive = source.with_extension("tar");
    let mut export = Command::new("git");
    workspace.settle(&mut export);
    let export = export
        .args(["archive", "--output"])
        .arg(&archive)
        .arg(&hash);
    let unpack = |source: &Path| {
        let mut tar = Command::new("tar");
        tar.arg("-xf").arg(&archive).arg("-C").arg(source);
        tar
    };
    let done = succeeds(export)? && succeeds(&mut unpack(&source))?;
    let how = How::of(&source, &build)?;
    let done = done
        && succeeds(
            workspace
                .cargo()
                .current_dir(&source)
                .env("CARGO_TARGET_DIR", &build)
                .args(["build", "--locked", "--package", "kennel"])
                .args(how.options),
        )?;
    let _ = std::fs::remove_file(&archive);
    if !done {
        return Err(format!("kennel of {hash} could not be built").into());
    }
    std::fs::copy(how.programs.join("kennel"), &program)?;
    Ok(program)
}

/// How a former commit is built for release.
struct How {
    options: Vec<String>,
    /// The directory of its programs.
    programs: PathBuf,
}

impl How {
    fn of(source: &Path, target: &Path) -> Outcome<How> {
        if source.join("xtask/src/dist.rs").is_file() {
            let build = Build::of_this_machine()?;
            return Ok(How {
                options: build.options(),
                programs: build.programs(target),
            });
        }
        // Commits without the profile `dist` used `release`.
        let manifest = std::fs::read_to_string(source.join("Cargo.toml"))?;
        let profile = match manifest.contains("[profile.dist]") {
            true => "dist",
            false => "release",
        };
        Ok(How {
            options: ["--profile", profile].map(str::to_owned).to_vec(),
            programs: target.join(profile),
        })
    }
}

/// The testbed, which is installed if it is missing; `None` without npm or python3, and then the benchmark prints what it
/// skips.
fn bed(workspace: &Workspace) -> Outcome<Option<PathBuf>> {
    match std::env::var_os(testbed::VARIABLE) {
        Some(bed) => Ok(Some(bed.into())),
        None => testbed::install(workspace).or_else(|error| {
            eprintln!("xtask: no npm or no python3, so some servers are skipped: {error}");
            Ok(None)
        }),
    }
}

fn peers(workspace: &Workspace) -> Outcome<PathBuf> {
    match std::env::var_os(testbed::PEERS_VARIABLE) {
        Some(peers) => Ok(peers.into()),
        None => testbed::install_peers(workspace),
    }
}
