//! `kennel completions` and `kennel man`: generated from the definition of the command line that also generates
//! `--help`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Command;

#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell to print the script for
    shell: Shell,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Write kennel.1 and a page for each command into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn completions(args: &CompletionsArgs, mut definition: Command) -> ExitCode {
    use clap_complete::{generate, shells};
    let mut script = Vec::new();
    let (definition, name) = (&mut definition, "kennel");
    match args.shell {
        Shell::Bash => generate(shells::Bash, definition, name, &mut script),
        Shell::Zsh => generate(shells::Zsh, definition, name, &mut script),
        Shell::Fish => generate(shells::Fish, definition, name, &mut script),
    }
    finished(io::stdout().write_all(&script), "print the script")
}

pub(crate) fn man(args: &ManArgs, definition: Command) -> ExitCode {
    let Some(dir) = &args.out else {
        let page = page(definition);
        return finished(
            page.and_then(|page| io::stdout().write_all(&page)),
            "print the manual",
        );
    };
    let written = pages(definition).and_then(|pages| {
        std::fs::create_dir_all(dir)?;
        pages
            .into_iter()
            .try_for_each(|(name, page)| std::fs::write(dir.join(name), page))
    });
    finished(written, &format!("write the manual to {}", dir.display()))
}

/// All pages with their file names.
fn pages(definition: Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut pages = Vec::new();
    for command in definition
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
    {
        let name = format!("kennel-{}", command.get_name());
        // The name of a page is that of its file.
        let named = command
            .clone()
            .name(leaked(&name))
            .bin_name(format!("kennel {}", command.get_name()));
        pages.push((format!("{name}.1"), page(named)?));
    }
    pages.push(("kennel.1".to_owned(), page(definition)?));
    Ok(pages)
}

/// clap keeps names as `&'static str`; a dozen of them are leaked.
fn leaked(name: &str) -> &'static str {
    name.to_owned().leak()
}

fn page(definition: Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(definition).render(&mut page)?;
    Ok(page)
}

fn finished(done: io::Result<()>, what: &str) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // The reader closed its end: it has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => crate::fail(&format!("cannot {what}: {error}")),
    }
}
