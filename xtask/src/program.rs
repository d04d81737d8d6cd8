//! Tasks that are programs of the workspace: built, and run with the remaining options.

use std::process::{Command, ExitCode};

use crate::Outcome;
use crate::report::succeeds;
use crate::workspace::Workspace;

/// Options that the program itself parses.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Options of the program, such as --seed; --help lists them
    #[arg(
        value_name = "OPTION",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    options: Vec<String>,
}

/// Builds and runs a program. `starts` are the packages whose programs it starts.
pub(crate) fn run(program: &str, starts: &[&str], options: &Options) -> Outcome<ExitCode> {
    let workspace = Workspace::load()?;
    let packages = [&[program], starts].concat();
    let packages = packages.iter().flat_map(|package| ["--package", package]);
    let mut build = workspace.cargo();
    build.args(["build", "--quiet", "--bins"]).args(packages);
    let mut command = Command::new(workspace.target.join("debug").join(program));
    command.args(&options.options);
    let held = succeeds(&mut build)? && succeeds(&mut command)?;
    Ok(if held {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    #[test]
    fn every_option_is_passed_to_the_program() {
        let given = ["--seed", "42", "--help", "--", "-x"];
        let cli = crate::Cli::try_parse_from(["xtask", "sim"].into_iter().chain(given));
        let crate::Task::Sim(args) = cli.expect("they are not looked at").task else {
            panic!("another task");
        };
        assert_eq!(args.options.options, given);
    }
}
