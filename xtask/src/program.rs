//! A chore that is a program of the workspace: it is built, and run with the options that are meant for it.

use std::process::{Command, ExitCode};

use crate::Outcome;
use crate::report::succeeds;
use crate::workspace::Workspace;

/// Read by the program itself.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Options of the program, --seed say: all of them with --help
    #[arg(
        value_name = "OPTION",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    options: Vec<String>,
}

/// Builds a program, and the packages whose programs it starts; runs it to its end.
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
    fn every_option_is_the_programs() {
        let given = ["--seed", "42", "--help", "--", "-x"];
        let cli = crate::Cli::try_parse_from(["xtask", "sim"].into_iter().chain(given));
        let crate::Chore::Sim(args) = cli.expect("they are not looked at").chore else {
            panic!("another chore");
        };
        assert_eq!(args.options.options, given);
    }
}
