//! The options of each launcher: which take a value, which do not, and which change the meaning of a package's name.

use crate::names::Names;

/// The options of one launcher. An option that is not listed makes the whole command unknown.
#[derive(Debug)]
pub(super) struct Grammar {
    /// Options without a value.
    flags: Names,
    /// Options with a value.
    valued: Names,
    /// Options whose value is another source of packages.
    elsewhere: Names,
}

pub(super) const NPX: Grammar = Grammar {
    flags: Names(
        "-y --yes --no --no-install -q --quiet -s --silent --prefer-offline --prefer-online --offline \
         --ignore-existing --bun --verbose --no-audit --no-fund --no-update-notifier --ignore-scripts",
    ),
    valued: Names("-p --package --loglevel --cache --fetch-timeout"),
    elsewhere: Names("--registry --prefix --userconfig -w --workspace --config"),
};

pub(super) const UVX: Grammar = Grammar {
    flags: UV_FLAGS,
    valued: Names(
        "--from --with --python -p --env-file --directory --cache-dir --refresh-package --prerelease \
         --color --exclude-newer",
    ),
    elsewhere: UV_ELSEWHERE,
};

pub(super) const UV: Grammar = Grammar {
    flags: UV_FLAGS,
    valued: Names(
        "-m --module --with --with-editable --with-requirements --python -p --env-file --directory \
         --project --extra --group --package --cache-dir --prerelease --color --exclude-newer",
    ),
    elsewhere: UV_ELSEWHERE,
};

const UV_FLAGS: Names = Names(
    "-q --quiet -v --verbose -n --no-cache --refresh -U --upgrade --isolated --offline --native-tls \
         --no-config --no-progress --no-env-file --no-sync --frozen --locked --active --no-project \
         --all-extras --no-dev --exact --managed-python --no-python-downloads --no-build",
);

const UV_ELSEWHERE: Names =
    Names("--index --default-index -i --index-url --extra-index-url -f --find-links --config-file");

pub(super) const PIPX: Grammar = Grammar {
    flags: Names("--no-cache --quiet -q --verbose -v --system-site-packages"),
    valued: Names("--spec --python --with"),
    elsewhere: Names("-i --index-url --pip-args"),
};

/// Only options that do not change which code runs: `-r` and `--import` would.
pub(super) const NODE: Grammar = Grammar {
    flags: Names(
        "--no-warnings --no-deprecation --enable-source-maps --trace-warnings --trace-deprecation \
         --use-system-ca --preserve-symlinks --expose-gc --experimental-strip-types --experimental-sqlite \
         --no-experimental-strip-types",
    ),
    valued: Names(
        "--max-old-space-size --stack-trace-limit --dns-result-order --max-http-header-size",
    ),
    elsewhere: Names(""),
};

pub(super) const BUN: Grammar = Grammar {
    flags: Names("--bun --silent --smol"),
    valued: Names(""),
    elsewhere: Names(""),
};

pub(super) const DENO: Grammar = Grammar {
    flags: Names(
        "-A --allow-all -q --quiet -N --allow-net -R --allow-read -W --allow-write -E --allow-env -S \
         --allow-sys --allow-run --allow-ffi --no-prompt --node-modules-dir",
    ),
    valued: Names(""),
    elsewhere: Names(""),
};

pub(super) const PYTHON: Grammar = Grammar {
    flags: Names("-u -B -I -E -s -O -OO -q -P"),
    valued: Names(""),
    elsewhere: Names(""),
};

pub(super) const ENV: Grammar = Grammar {
    flags: Names("-i - --ignore-environment"),
    valued: Names("-u --unset -C --chdir"),
    elsewhere: Names(""),
};

/// A command line, parsed by a [`Grammar`].
#[derive(Debug)]
pub(super) struct Line<'a, 'w> {
    values: Vec<(&'w str, &'w str)>,
    /// Whether packages come from another source than usual.
    pub(super) elsewhere: bool,
    /// The words after the options.
    pub(super) operands: &'a [&'w str],
}

impl Grammar {
    /// Parses the options up to the first operand. `None` if one of them is unknown.
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
            if self.flags.contains(name) {
                continue;
            }
            let elsewhere = self.elsewhere.contains(name);
            if !elsewhere && !self.valued.contains(name) {
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
