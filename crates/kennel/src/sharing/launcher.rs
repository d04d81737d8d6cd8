//! Finds out what a command line starts through its launchers: `npx -y @x/y@1` starts the package `@x/y`.
//!
//! The grammar of each launcher is written down here, and nothing is guessed: an unknown option might take a value, and
//! the word after it would be mistaken for a package.

mod grammar;
mod package;

use grammar::Grammar;
pub(crate) use package::{Registry, is_installed, normalised};

/// Maximum number of launchers before each other: `env`, `sh -c`, `uv run`, `python -m`.
const MAX_NESTING: usize = 5;

/// The program or package that a command starts, as far as its words show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Launched {
    /// A package of a registry.
    Package {
        /// Its registry.
        registry: Registry,
        /// Its name without version; several, if the program may belong to any of them.
        names: Vec<String>,
        /// The program of the package that runs; `None` for the one with the package's name.
        program: Option<String>,
    },
    /// A Python module.
    Module(String),
    /// A file that an interpreter runs.
    Script(String),
    /// A program, by its name or path.
    Program(String),
}

impl Launched {
    /// The name that people use for it.
    pub(crate) fn name(&self) -> &str {
        match self {
            Launched::Package { names, program, .. } => {
                let package = names.first().map_or("server", String::as_str);
                base(program.as_deref().unwrap_or(package))
            }
            Launched::Module(name) => name,
            Launched::Script(path) | Launched::Program(path) => base(path),
        }
    }
}

/// The name that people use for the server of this command: that of the launched package or module, else of the
/// program.
pub(crate) fn name_of<W: AsRef<str>>(command: &[W]) -> String {
    match launched(command) {
        Some(launched) => launched.name().to_owned(),
        None => {
            let program = command.first().map_or("server", AsRef::as_ref);
            base(program).to_owned()
        }
    }
}

/// The program or package that this command starts; `None` if its words do not show it for certain.
pub(crate) fn launched<W: AsRef<str>>(command: &[W]) -> Option<Launched> {
    let words: Vec<&str> = command.iter().map(AsRef::as_ref).collect();
    launched_by(&words, MAX_NESTING)
}

fn launched_by(words: &[&str], depth: usize) -> Option<Launched> {
    let (&program, rest) = words.split_first()?;
    let depth = depth.checked_sub(1)?;
    match base(program) {
        "env" => launched_by(skip_env(rest)?, depth),
        "sh" | "bash" | "dash" | "zsh" => {
            let line = shell_line(rest)?;
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            launched_by(skip_assignments(&words), depth)
        }
        "npx" | "bunx" => npm_package(&grammar::NPX, rest),
        "npm" => npm_package(&grammar::NPX, after(rest, &["exec", "x"])?),
        "pnpx" => npm_package(&grammar::NPX, rest),
        "pnpm" | "yarn" => npm_package(&grammar::NPX, after(rest, &["dlx"])?),
        "bun" => match after(rest, &["x"]) {
            Some(rest) => npm_package(&grammar::NPX, rest),
            None => script(&grammar::BUN, after(rest, &["run"]).unwrap_or(rest)),
        },
        "deno" => deno(after(rest, &["run"])?),
        "node" | "nodejs" => script(&grammar::NODE, rest),
        "uvx" => pypi_package(&grammar::UVX, "--from", rest),
        "uv" => uv(rest, depth),
        "pipx" => pypi_package(&grammar::PIPX, "--spec", after(rest, &["run"])?),
        name if is_python(name) => python(rest),
        "docker" | "podman" | "nerdctl" => None,
        _ => Some(of_path(program, Launched::Program)),
    }
}

/// `npx [options] package`, `npx -p package program`.
fn npm_package(grammar: &Grammar, words: &[&str]) -> Option<Launched> {
    let line = grammar.read(words)?;
    package::launched(&line, &["-p", "--package"], package::npm)
}

/// `uvx [options] package`, `uvx --from package program`.
fn pypi_package(grammar: &Grammar, from: &str, words: &[&str]) -> Option<Launched> {
    let line = grammar.read(words)?;
    package::launched(&line, &[from], package::pypi)
}

fn uv(words: &[&str], depth: usize) -> Option<Launched> {
    let line = grammar::UV.read(words)?;
    match line.operands {
        ["tool", "run", rest @ ..] => pypi_package(&grammar::UVX, "--from", rest),
        ["run", rest @ ..] => {
            let line = grammar::UV.read(rest)?;
            match line.value_of(&["-m", "--module"]) {
                Some(module) => Some(Launched::Module(module.to_owned())),
                None if line.operands.first()?.ends_with(".py") => {
                    Some(Launched::Script(line.operands[0].to_owned()))
                }
                // A program of the project's environment, or Python itself.
                None => launched_by(line.operands, depth),
            }
        }
        _ => None,
    }
}

fn python(words: &[&str]) -> Option<Launched> {
    // Python stops reading options at `-m`: the words after the module belong to the module.
    let at = words
        .iter()
        .position(|word| !word.starts_with('-') || *word == "-m");
    let (options, rest) = words.split_at(at?);
    let known = grammar::PYTHON.read(options)?;
    match rest {
        ["-m", module, ..] if known.operands.is_empty() => Some(Launched::Module((*module).into())),
        [path, ..] if *path != "-m" => Some(Launched::Script((*path).to_owned())),
        _ => None,
    }
}

fn deno(words: &[&str]) -> Option<Launched> {
    let line = grammar::DENO.read(words)?;
    let what = *line.operands.first()?;
    match what.strip_prefix("npm:") {
        Some(spec) => package::launched_alone(package::npm(spec)?, line.elsewhere),
        None if what.contains("://") || what.starts_with("jsr:") => None,
        None => Some(of_path(what, Launched::Script)),
    }
}

fn script(grammar: &Grammar, words: &[&str]) -> Option<Launched> {
    let line = grammar.read(words)?;
    Some(of_path(line.operands.first()?, Launched::Script))
}

/// A file of an installed package counts as the package.
fn of_path(path: &str, otherwise: impl FnOnce(String) -> Launched) -> Launched {
    match package::of_installed_file(path) {
        Some(name) => Launched::Package {
            registry: Registry::Npm,
            names: vec![name],
            program: None,
        },
        None => otherwise(path.to_owned()),
    }
}

fn skip_env<'a, 'w>(words: &'a [&'w str]) -> Option<&'a [&'w str]> {
    let line = grammar::ENV.read(words)?;
    Some(skip_assignments(line.operands))
}

fn skip_assignments<'a, 'w>(words: &'a [&'w str]) -> &'a [&'w str] {
    let is_assignment = |word: &&str| match word.split_once('=') {
        Some((name, _)) => {
            !name.is_empty() && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric())
        }
        None => false,
    };
    let at = words.iter().position(|word| !is_assignment(word));
    &words[at.unwrap_or(words.len())..]
}

/// The line of `sh -c line`, if it is one command in which a shell changes nothing.
fn shell_line<'w>(words: &[&'w str]) -> Option<&'w str> {
    let (line, options) = words.split_last()?;
    let (last, before) = options.split_last()?;
    let letters = |word: &str| {
        let letters = word.strip_prefix('-').unwrap_or_default();
        !letters.is_empty() && letters.chars().all(|c| "cel".contains(c))
    };
    let known = letters(last) && last.contains('c') && before.iter().all(|word| letters(word));
    let plain = |c: char| c.is_ascii_alphanumeric() || " @%+=:,./_-".contains(c);
    let line = line.strip_prefix("exec ").unwrap_or(line);
    (known && line.chars().all(plain)).then_some(line)
}

fn after<'a, 'w>(words: &'a [&'w str], verbs: &[&str]) -> Option<&'a [&'w str]> {
    let (first, rest) = words.split_first()?;
    verbs.contains(first).then_some(rest)
}

fn is_python(name: &str) -> bool {
    let version = name.strip_prefix("python");
    version.is_some_and(|version| version.chars().all(|c| c == '.' || c.is_ascii_digit()))
}

/// The last part of a path or of a scoped name.
pub(super) fn base(word: &str) -> &str {
    let word = word.trim_end_matches('/');
    word.rsplit('/').next().unwrap_or(word)
}

#[cfg(test)]
mod tests;
