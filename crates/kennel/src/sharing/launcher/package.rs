//! Parses the name of a package: with a scope, a version, extras, or a location.

use super::grammar::Line;
use super::{Launched, base};

/// The registry of a package: the same name means different packages in different registries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Registry {
    /// The npm registry.
    Npm,
    /// The Python Package Index.
    PyPi,
    /// A repository, a directory, or a registry named by an option: the package cannot be identified.
    Elsewhere,
}

/// A package as the words of a launcher name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spec {
    registry: Registry,
    name: String,
}

/// The package that a command line starts: that of `option` if given, otherwise the first operand.
pub(super) fn launched(
    line: &Line<'_, '_>,
    option: &[&str],
    read: fn(&str) -> Option<Spec>,
) -> Option<Launched> {
    let named = line.values_of(option);
    let first = *line.operands.first()?;
    if named.is_empty() {
        return launched_alone(read(first)?, line.elsewhere);
    }
    let specs: Vec<Spec> = named.into_iter().map(read).collect::<Option<_>>()?;
    let strange = |spec: &Spec| spec.registry == Registry::Elsewhere;
    let elsewhere = line.elsewhere || specs.iter().any(strange);
    Some(Launched::Package {
        registry: if elsewhere {
            Registry::Elsewhere
        } else {
            specs.first()?.registry
        },
        names: specs.into_iter().map(|spec| spec.name).collect(),
        program: Some(first.to_owned()),
    })
}

/// A package whose program has the package's name.
pub(super) fn launched_alone(spec: Spec, elsewhere: bool) -> Option<Launched> {
    Some(Launched::Package {
        registry: if elsewhere {
            Registry::Elsewhere
        } else {
            spec.registry
        },
        names: vec![spec.name],
        program: None,
    })
}

/// `name`, `@scope/name`, either with `@version`.
pub(super) fn npm(word: &str) -> Option<Spec> {
    let (scope, rest) = match word.strip_prefix('@') {
        Some(scoped) => {
            let (scope, rest) = scoped.split_once('/')?;
            (Some(scope), rest)
        }
        None => (None, word),
    };
    let (name, version) = rest.split_once('@').unwrap_or((rest, ""));
    let full = match scope {
        Some(scope) => format!("@{scope}/{name}"),
        None => name.to_owned(),
    };
    let plain =
        |text: &str| !text.is_empty() && !text.starts_with('.') && text.chars().all(is_plain);
    if plain(name) && scope.is_none_or(plain) {
        // `name@npm:other` and `name@file:dir` are other packages than `name`.
        let registry = if version.contains([':', '/']) || name.ends_with(".tgz") {
            Registry::Elsewhere
        } else {
            Registry::Npm
        };
        return Some(Spec {
            registry,
            name: full,
        });
    }
    place(word)
}

/// `name`, with extras, with `@version` or a comparison.
pub(super) fn pypi(word: &str) -> Option<Spec> {
    let end = word.find(|c| !is_plain(c)).unwrap_or(word.len());
    let (name, mut rest) = word.split_at(end);
    if name.is_empty() || name.starts_with('.') {
        return place(word);
    }
    if let Some(extras) = rest.strip_prefix('[') {
        rest = extras.split_once(']')?.1;
    }
    let rest = rest.trim_start();
    if !rest.is_empty() && !rest.starts_with(['@', '=', '<', '>', '!', '~']) {
        return place(word);
    }
    // `name@https://…` and `name.whl` are other packages than `name`.
    let registry = if rest.contains(['/', ':']) || name.ends_with(".whl") {
        Registry::Elsewhere
    } else {
        Registry::PyPi
    };
    Some(Spec {
        registry,
        name: name.to_owned(),
    })
}

/// A location that is not a name in a registry.
fn place(word: &str) -> Option<Spec> {
    let name = base(word).split(['#', '?', '@']).next()?;
    let name = name.strip_suffix(".git").unwrap_or(name);
    (!name.is_empty()).then(|| Spec {
        registry: Registry::Elsewhere,
        name: name.to_owned(),
    })
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._-".contains(c)
}

/// The package that contains a file below the last `node_modules`.
pub(super) fn of_installed_file(path: &str) -> Option<String> {
    let mut parts: Vec<&str> = path.split('/').collect();
    if parts.contains(&"..") {
        return None;
    }
    let at = parts.iter().rposition(|part| *part == "node_modules")?;
    let inside = parts.split_off(at + 1);
    match inside[..] {
        // Links to programs: their names do not identify the package.
        [".bin", ..] => None,
        [scope, name, _, ..] if scope.starts_with('@') => Some(format!("{scope}/{name}")),
        [name, _, ..] if !name.starts_with('@') => Some(name.to_owned()),
        _ => None,
    }
}

/// The directories in which package managers install programs for a project, an environment or a user.
const PACKAGE_MANAGER_DIRS: [[&str; 2]; 5] = [
    ["node_modules", ".bin"],
    ["venv", "bin"],
    [".venv", "bin"],
    ["env", "bin"],
    [".local", "bin"],
];
/// The same for the whole machine.
const SYSTEM_DIRS: [&str; 3] = ["/usr/bin", "/usr/local/bin", "/opt/homebrew/bin"];

/// Whether a program is where installers put it: named without a directory, or in one of their directories.
pub(crate) fn is_installed(program: &str) -> bool {
    let Some((dir, _)) = program.rsplit_once('/') else {
        return true;
    };
    let parts: Vec<&str> = dir.split('/').collect();
    let theirs = PACKAGE_MANAGER_DIRS.iter().any(|end| parts.ends_with(end));
    (theirs || SYSTEM_DIRS.contains(&dir)) && !parts.contains(&"..")
}

/// A Python package's name as the index compares it: `Mcp_Server.Git` is `mcp-server-git`.
pub(crate) fn normalised(name: &str) -> String {
    let parts = name.split(['-', '_', '.']).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("-").to_ascii_lowercase()
}
