//! The options of each launcher: which take a value, which do not, and which make a name mean something
//! else.

/// The options of one launcher. One that is not here makes the whole command unknown.
#[derive(Debug)]
pub(super) struct Grammar {
    /// Stand alone.
    flags: &'static [&'static str],
    /// Take a value.
    valued: &'static [&'static str],
    /// Take a value that says to look for packages somewhere else.
    elsewhere: &'static [&'static str],
}

pub(super) const NPX: Grammar = Grammar {
    flags: &[
        "-y",
        "--yes",
        "--no",
        "--no-install",
        "-q",
        "--quiet",
        "-s",
        "--silent",
        "--prefer-offline",
        "--prefer-online",
        "--offline",
        "--ignore-existing",
        "--bun",
        "--verbose",
        "--no-audit",
        "--no-fund",
        "--no-update-notifier",
        "--ignore-scripts",
    ],
    valued: &[
        "-p",
        "--package",
        "--loglevel",
        "--cache",
        "--fetch-timeout",
    ],
    elsewhere: &[
        "--registry",
        "--prefix",
        "--userconfig",
        "-w",
        "--workspace",
        "--config",
    ],
};

pub(super) const UVX: Grammar = Grammar {
    flags: UV_FLAGS,
    valued: &[
        "--from",
        "--with",
        "--python",
        "-p",
        "--env-file",
        "--directory",
        "--cache-dir",
        "--refresh-package",
        "--prerelease",
        "--color",
        "--exclude-newer",
    ],
    elsewhere: UV_ELSEWHERE,
};

pub(super) const UV: Grammar = Grammar {
    flags: UV_FLAGS,
    valued: &[
        "-m",
        "--module",
        "--with",
        "--with-editable",
        "--with-requirements",
        "--python",
        "-p",
        "--env-file",
        "--directory",
        "--project",
        "--extra",
        "--group",
        "--package",
        "--cache-dir",
        "--prerelease",
        "--color",
        "--exclude-newer",
    ],
    elsewhere: UV_ELSEWHERE,
};

const UV_FLAGS: &[&str] = &[
    "-q",
    "--quiet",
    "-v",
    "--verbose",
    "-n",
    "--no-cache",
    "--refresh",
    "-U",
    "--upgrade",
    "--isolated",
    "--offline",
    "--native-tls",
    "--no-config",
    "--no-progress",
    "--no-env-file",
    "--no-sync",
    "--frozen",
    "--locked",
    "--active",
    "--no-project",
    "--all-extras",
    "--no-dev",
    "--exact",
    "--managed-python",
    "--no-python-downloads",
    "--no-build",
];

const UV_ELSEWHERE: &[&str] = &[
    "--index",
    "--default-index",
    "-i",
    "--index-url",
    "--extra-index-url",
    "-f",
    "--find-links",
    "--config-file",
];

pub(super) const PIPX: Grammar = Grammar {
    flags: &[
        "--no-cache",
        "--quiet",
        "-q",
        "--verbose",
        "-v",
        "--system-site-packages",
    ],
    valued: &["--spec", "--python", "--with"],
    elsewhere: &["-i", "--index-url", "--pip-args"],
};

/// Only what changes nothing about which code runs: `-r` and `--import` would.
pub(super) const NODE: Grammar = Grammar {
    flags: &[
        "--no-warnings",
        "--no-deprecation",
        "--enable-source-maps",
        "--trace-warnings",
        "--trace-deprecation",
        "--use-system-ca",
        "--preserve-symlinks",
        "--expose-gc",
        "--experimental-strip-types",
        "--experimental-sqlite",
        "--no-experimental-strip-types",
    ],
    valued: &[
        "--max-old-space-size",
        "--stack-trace-limit",
        "--dns-result-order",
        "--max-http-header-size",
    ],
    elsewhere: &[],
};

pub(super) const BUN: Grammar = Grammar {
    flags: &["--bun", "--silent", "--smol"],
    valued: &[],
    elsewhere: &[],
};

pub(super) const DENO: Grammar = Grammar {
    flags: &[
        "-A",
        "--allow-all",
        "-q",
        "--quiet",
        "-N",
        "--allow-net",
        "-R",
        "--allow-read",
        "-W",
        "--allow-write",
        "-E",
        "--allow-env",
        "-S",
        "--allow-sys",
        "--allow-run",
        "--allow-ffi",
        "--no-prompt",
        "--node-modules-dir",
    ],
    valued: &[],
    elsewhere: &[],
};

pub(super) const PYTHON: Grammar = Grammar {
    flags: &["-u", "-B", "-I", "-E", "-s", "-O", "-OO", "-q", "-P"],
    valued: &[],
    elsewhere: &[],
};

pub(super) const ENV: Grammar = Grammar {
    flags: &["-i", "-", "--ignore-environment"],
    valued: &["-u", "--unset", "-C", "--chdir"],
    elsewhere: &[],
};

/// A command line, read by a [`Grammar`].
#[derive(Debug)]
pub(super) struct Line<'a, 'w> {
    values: Vec<(&'w str, &'w str)>,
    /// Whether packages come from somewhere else than usual.
    pub(super) elsewhere: bool,
    /// What is left behind the options.
    pub(super) operands: &'a [&'w str],
}

impl Grammar {
    /// Reads the options up to the first word that is none. `None` if one of them is not known.
    pub(super) fn read<'a, 'w>(&self, words: &'a [&'w str]) -> Option<Line<'a, 'w>> {
        let mut line = Line {
            values: Vec::new(),
            elsewhere: false,
            operands: words,
        };
        while let Some((&word, rest)) = line.operands.split_first() {
            if word == "--" {
                line.operands = rest;
                break;
            }
            if !word.starts_with('-') {
                break;
            }
            line.operands = rest;
            let (name, given) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word, None),
            };
            if self.flags.contains(&name) {
                continue;
            }
            let elsewhere = self.elsewhere.contains(&name);
            if !elsewhere && !self.valued.contains(&name) {
                return None;
            }
            line.elsewhere |= elsewhere;
            let value = match given {
                Some(value) => value,
                None => {
                    let (&value, rest) = line.operands.split_first()?;
                    line.operands = rest;
                    value
                }
            };
            line.values.push((name, value));
        }
        Some(line)
    }
}

impl<'w> Line<'_, 'w> {
    /// The values of an option, under any of its names.
    pub(super) fn values_of(&self, names: &[&str]) -> Vec<&'w str> {
        let named = |(name, _): &&(&str, &str)| names.contains(name);
        let values = self.values.iter().filter(named);
        values.map(|(_, value)| *value).collect()
    }

    /// The last value of an option, under any of its names.
    pub(super) fn value_of(&self, names: &[&str]) -> Option<&'w str> {
        self.values_of(names).pop()
    }
}
