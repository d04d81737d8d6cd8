//! Selects the variables of a session's environment that count for its key; the result is a plain list of names.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::rights::{self, begins_with, is_one_of};
use crate::sharing::launcher::{self, Launched, Registry};
use crate::sharing::table;

/// Variables that do not change what the server does: they differ from terminal to terminal and from app to app. A name
/// that ends in `*` stands for all names with this prefix.
pub(crate) const VOLATILE: &[&str] = &[
    // The shell's own.
    "_",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "PS1",
    "PS2",
    "PROMPT",
    "PROMPT2",
    "PROMPT3",
    "PROMPT4",
    "PROMPT_COMMAND",
    "PROMPT_DIRTRIM",
    "PROMPT_EOL_MARK",
    "RPROMPT",
    "HIST*",
    "STARSHIP_*",
    "ATUIN_*",
    "MCFLY_*",
    "_P9K_*",
    "P9K_*",
    "FNM_MULTISHELL_PATH",
    "DIRENV_*",
    "VIRTUAL_ENV_PROMPT",
    "OMP_*",
    "POSH_*",
    "__CF*",
    "__MISE_*",
    // The terminal.
    "TERM",
    "TERM_*",
    "TERMINAL_*",
    "TERMINFO",
    "COLORTERM",
    "COLORFGBG",
    "NO_COLOR",
    "FORCE_COLOR",
    "CLICOLOR*",
    "COLUMNS",
    "LINES",
    "TTY",
    "GPG_TTY",
    "WINDOWID",
    "WT_SESSION",
    "WT_PROFILE_ID",
    "WSL_INTEROP",
    "ITERM_*",
    "LC_TERMINAL*",
    "KITTY_*",
    "ALACRITTY_*",
    "WEZTERM_*",
    "GHOSTTY_*",
    "WARP_IS_LOCAL_SHELL_SESSION",
    "TILIX_ID",
    "TERMINATOR_*",
    "GUAKE_*",
    "VTE_VERSION",
    "KONSOLE_*",
    "TMUX",
    "TMUX_*",
    "STY",
    "BYOBU_*",
    "ZELLIJ*",
    "LS_COLORS",
    // The login, and the desktop around it.
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "DBUS_*",
    // Whether it is set depends on how the app was started, not on what the server does.
    "XDG_RUNTIME_DIR",
    "XDG_SESSION_*",
    "XDG_CURRENT_DESKTOP",
    "XDG_MENU_PREFIX",
    "XDG_VTNR",
    "XDG_SEAT*",
    "XDG_ACTIVATION_TOKEN",
    "ORIGINAL_XDG_CURRENT_DESKTOP",
    "DESKTOP_STARTUP_ID",
    "DESKTOP_SESSION",
    "GDMSESSION",
    "SESSION_MANAGER",
    "SSH_AGENT_LAUNCHER",
    "SSH_AGENT_PID",
    "SSH_ASKPASS*",
    "SSH_AUTH_SOCK",
    "SSH_CLIENT",
    "SSH_CONNECTION",
    "SSH_ORIGINAL_COMMAND",
    "SSH_TTY",
    "GNOME_*",
    "KDE_*",
    "GIO_LAUNCHED_*",
    "BAMF_*",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "MEMORY_PRESSURE_*",
    "NOTIFY_SOCKET",
    "SYSTEMD_EXEC_PID",
    "LISTEN_*",
    "MANAGERPID*",
    "SECURITYSESSIONID",
    "XPC_*",
    // How the app is packaged: another directory with each start.
    "APPDIR",
    "APPIMAGE",
    "ARGV0",
    "OWD",
    "SNAP",
    "SNAP_*",
    "FLATPAK_*",
    // The launcher between app and server.
    "npm_*",
    "INIT_CWD",
    "NODE_CHANNEL_FD",
    "NODE_CHANNEL_SERIALIZATION_MODE",
    "UV",
    "UV_RUN_*",
    // The app that starts the server.
    "VSCODE_*",
    "CURSOR_*",
    "CLAUDECODE",
    "CLAUDE_CODE_*",
    "CLAUDE_AGENT_*",
    "CODEX_CI",
    "CODEX_SANDBOX*",
    "CODEX_THREAD_ID",
    "GEMINI_CLI",
    "GEMINI_CLI_*",
    "OPENCODE",
    "OPENCODE_*",
    "WINDSURF_*",
    "ZED_*",
    "CLINE_ACTIVE",
    "GOOSE_TERMINAL",
    "AGENT",
    "AI_AGENT",
    "NVIM",
    "NVIM_LOG_FILE",
    "VIM",
    "VIMRUNTIME",
    "MYVIMRC",
    "INSIDE_EMACS",
    "ELECTRON_*",
    "CHROME_CRASHPAD_PIPE_NAME",
    "CHROME_DESKTOP",
    "CHROME_VERSION_EXTRA",
    "CHROME_WRAPPER",
    // Kennel's own.
    "KENNEL_*",
];

/// Variables with the directory an app works in. With `--cwd`, the directory is given, and these do not count.
pub(crate) const PROJECT: &[&str] = &["CLAUDE_PROJECT_DIR", "WORKSPACE_FOLDER_PATHS"];

/// Variables that count for every server in the table, whatever its runtime: where its user's files are, how it reaches
/// the network and which certificates it trusts, and which libraries are loaded into it.
pub(crate) const EVERYWHERE: &[&str] = &[
    "HOME",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_AUDIT",
    "GCONV_PATH",
    "OPENSSL_CONF",
    "OPENSSL_MODULES",
];

/// Variables that count for every server in the table that runs on Node.
pub(crate) const NODE: &[&str] = &[
    "NODE_OPTIONS",
    "NODE_PATH",
    "NODE_ENV",
    "NODE_EXTRA_CA_CERTS",
    "NODE_TLS_REJECT_UNAUTHORIZED",
    "NODE_USE_ENV_PROXY",
    "NODE_USE_SYSTEM_CA",
    "npm_config_node_options",
    "npm_config_script_shell",
    "npm_config_prefix",
    "npm_config_cache",
];

/// Prefix of npm's settings. They are volatile, except those in [`NODE`], which change the code that runs.
const NPM_SETTINGS: &str = "npm_config_";

/// Variables that count for every server in the table that runs on Python.
pub(crate) const PYTHON: &[&str] = &[
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONUSERBASE",
    "PYTHONNOUSERSITE",
    "PYTHONOPTIMIZE",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
];

/// Variables that name the source of packages for a launcher, in addition to all names with `REGISTRY` as a word. They
/// change what runs, so they always count, unless they are of the [other ecosystem](Ecosystem).
pub(crate) const REGISTRY: &[&str] = &[
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_CONFIG_FILE",
    "UV_INDEX",
    "UV_INDEX_URL",
    "UV_EXTRA_INDEX_URL",
    "UV_DEFAULT_INDEX",
    "UV_FIND_LINKS",
    "UV_CONFIG_FILE",
    "NPM_CONFIG_USERCONFIG",
    "NPM_CONFIG_GLOBALCONFIG",
];

/// Prefixes of the variables of Node's launchers, in upper case.
const NODE_PREFIXES: &[&str] = &["NPM_", "PNPM_", "YARN_", "BUN_", "COREPACK_"];
/// Prefixes of the variables of Python's launchers.
const PYTHON_PREFIXES: &[&str] = &["PIP_", "PIPX_", "UV_"];

/// The ecosystem whose registries a launcher uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ecosystem {
    Node,
    Python,
}

impl Ecosystem {
    /// The ecosystem of the launcher at the beginning of this command; `None` if it is unknown, so that all registries
    /// count.
    pub(crate) fn of(command: &[OsString]) -> Option<Ecosystem> {
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        let program = Path::new(command.first()?).file_name()?.to_str()?;
        let package = match launcher::launched(&words)? {
            Launched::Package { registry, .. } => Some(registry),
            _ => None,
        };
        match (program, package) {
            ("npx" | "npm" | "pnpx" | "pnpm" | "yarn" | "bunx" | "bun", Some(Registry::Npm)) => {
                Some(Ecosystem::Node)
            }
            ("uvx" | "pipx", Some(Registry::PyPi)) => Some(Ecosystem::Python),
            // `uv` may run a launcher of the other ecosystem.
            ("uv", package) if package != Some(Registry::Npm) => Some(Ecosystem::Python),
            _ => None,
        }
    }

    /// Whether only launchers of the other ecosystem read a variable of this name.
    fn ignores(self, name: &[u8]) -> bool {
        let of_others = match self {
            Ecosystem::Node => PYTHON_PREFIXES,
            Ecosystem::Python => NODE_PREFIXES,
        };
        matches_any(of_others, name, begins_with)
    }
}

/// The input of the decision which variables count.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VariableInput<'a> {
    /// The session's whole environment.
    pub(crate) env: &'a [(OsString, OsString)],
    /// The names given with `--env-key`: only these count.
    pub(crate) env_key: Option<&'a [OsString]>,
    /// The names that count for a server in the table.
    pub(crate) known: Option<&'a [&'a str]>,
    /// Whether `--cwd` was given.
    pub(crate) cwd_given: bool,
    /// The ecosystem whose registries count, if only one ecosystem's registries do.
    pub(crate) ecosystem: Option<Ecosystem>,
}

/// The names of the set variables that count. Credentials, registries, and the variables that a server in the table
/// reads always do.
pub(crate) fn counted(what: VariableInput<'_>) -> Vec<OsString> {
    let always = Always {
        known: what.known.map(<[_]>::to_vec),
        ecosystem: what.ecosystem,
    };
    counted_or(what, |name, value| always.counts(name, value, what.env))
}

/// The names of the variables that count according to `what`, and of those for which `always_counts` is true.
pub(crate) fn counted_or(
    what: VariableInput<'_>,
    always_counts: impl Fn(&OsStr, &OsStr) -> bool,
) -> Vec<OsString> {
    let is_wanted = |name: &OsStr, value: &OsStr| {
        let bytes = name.as_encoded_bytes();
        match (what.env_key, what.known) {
            (Some(names), _) => names
                .iter()
                .any(|wanted| matches_pattern(wanted.as_encoded_bytes(), bytes)),
            _ if is_set_by_npm(name, value, what.env) => false,
            (None, Some(known)) => matches(known, bytes),
            (None, None) if bytes.starts_with(NPM_SETTINGS.as_bytes()) => matches(NODE, bytes),
            (None, None) => {
                let of_project = what.cwd_given && matches(PROJECT, bytes);
                let of_others = what.ecosystem.is_some_and(|its| its.ignores(bytes));
                let is_registry = of_others && names_registry(bytes);
                !matches(VOLATILE, bytes)
                    && !of_project
                    && !is_registry
                    && !is_coerced_locale(bytes, value)
            }
        }
    };
    // `is_wanted` first: it is cheaper.
    let counts = |name: &OsStr, value: &OsStr| is_wanted(name, value) || always_counts(name, value);
    let counted = what.env.iter().filter(|(name, value)| counts(name, value));
    counted.map(|(name, _)| name.clone()).collect()
}

/// The variables that count for a command even if `--env-key` does not name them.
#[derive(Debug)]
pub(crate) struct Always<'a> {
    /// The names that count because the server is in the table.
    known: Option<Vec<&'a str>>,
    /// The ecosystem whose registries count, if only one ecosystem's registries do.
    ecosystem: Option<Ecosystem>,
}

impl Always<'static> {
    pub(crate) fn of(command: &[OsString]) -> Always<'static> {
        Always {
            known: table::variables_of(command),
            ecosystem: Ecosystem::of(command),
        }
    }
}

impl Always<'_> {
    /// Whether a variable counts: it gives rights, the server in the table reads it, or it names a registry that the
    /// launcher uses (except values that npm sets by itself).
    pub(crate) fn counts(&self, name: &OsStr, value: &OsStr, env: &[(OsString, OsString)]) -> bool {
        let is_known = |known: &Vec<&str>| matches(known, name.as_encoded_bytes());
        rights::are_given_by(name.as_encoded_bytes(), value.as_encoded_bytes())
            || (self.known.as_ref().is_some_and(is_known) && !is_set_by_npm(name, value, env))
            || is_read_registry(name, value, env, self.ecosystem)
    }
}

/// Whether a variable names a registry that the launcher uses, and was not set by npm itself.
pub(crate) fn is_read_registry(
    name: &OsStr,
    value: &OsStr,
    env: &[(OsString, OsString)],
    ecosystem: Option<Ecosystem>,
) -> bool {
    let bytes = name.as_encoded_bytes();
    let is_read = || !ecosystem.is_some_and(|its| its.ignores(bytes));
    names_registry(bytes) && is_read() && !is_set_by_npm(name, value, env)
}

/// Whether a variable names a source of packages for a launcher.
pub(crate) fn names_registry(name: &[u8]) -> bool {
    let mut words = name.split(|byte| !byte.is_ascii_alphanumeric());
    is_one_of(REGISTRY, name) || words.any(|word| word.eq_ignore_ascii_case(b"REGISTRY"))
}

/// Whether npm set this variable for the programs it runs, to the path of a configuration file that npm reads anyway. So
/// a session whose app was started by npm can share with other sessions.
fn is_set_by_npm(name: &OsStr, value: &OsStr, env: &[(OsString, OsString)]) -> bool {
    // If a variable is set twice, a program gets the last value.
    let of = |wanted: &str| env.iter().rev().find(|(name, _)| name == wanted);
    let in_home = |file: &str| {
        of("HOME").is_some_and(|(_, home)| Path::new(home).join(file) == Path::new(value))
    };
    match name.as_encoded_bytes() {
        b"npm_config_userconfig" => in_home(".npmrc"),
        b"npm_config_cache" => in_home(".npm"),
        // The directory that its node is installed in.
        b"npm_config_prefix" => of("npm_node_execpath")
            .is_some_and(|(_, node)| Path::new(value).join("bin/node") == Path::new(node)),
        // The file of the node installation that runs npm, or a file that does not exist.
        b"npm_config_globalconfig" => {
            let of_node = of("npm_node_execpath").is_some_and(|(_, node)| {
                let prefix = Path::new(node).ancestors().nth(2);
                prefix.is_some_and(|prefix| prefix.join("etc/npmrc") == Path::new(value))
            });
            let in_place = Path::new(value).ends_with("etc/npmrc");
            of_node || (in_place && !Path::new(value).exists())
        }
        _ => false,
    }
}

/// Python sets this in a locale without UTF-8 (PEP 538), for itself and its children: no person chose it.
fn is_coerced_locale(name: &[u8], value: &OsStr) -> bool {
    name == b"LC_CTYPE"
        && [b"C.UTF-8", &b"C.utf8"[..], b"UTF-8"].contains(&value.as_encoded_bytes())
}

/// Whether a list has this name, or a prefix of it.
pub(crate) fn matches(list: &[&str], name: &[u8]) -> bool {
    matches_any(list, name, matches_pattern)
}

/// Whether a name matches a list. Every start of a session checks all variables against all lists, and most names differ
/// in the first letter, so that is compared first.
pub(crate) fn matches_any(
    list: &[&str],
    name: &[u8],
    matches: impl Fn(&[u8], &[u8]) -> bool,
) -> bool {
    let first = |name: &[u8]| name.first().map(u8::to_ascii_uppercase);
    let first_of_name = first(name);
    let mut entries = list.iter().map(|entry| entry.as_bytes());
    entries.any(|entry| first(entry) == first_of_name && matches(entry, name))
}

/// Whether a name equals `wanted`, or has its prefix if `wanted` ends in `*`.
fn matches_pattern(wanted: &[u8], name: &[u8]) -> bool {
    match wanted {
        [prefix @ .., b'*'] => name.starts_with(prefix),
        _ => name == wanted,
    }
}

#[cfg(test)]
pub(crate) mod tests;
