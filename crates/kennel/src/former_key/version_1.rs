//! The key of version 1. Its formula must not change.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use kennel_sys::confinement::Confinement;
use kennel_sys::user::UserId;

use crate::key::{Fields, KeyInput};
use crate::search_path;

/// Variables that did not count.
#[rustfmt::skip]
const VOLATILE: &[&str] = &[
    "_", "PWD", "OLDPWD", "SHLVL", "PS1", "PS2", "PROMPT*", "HISTFILE", "HISTSIZE", "STARSHIP_*",
    "TERM", "TERM_*", "TERMINAL_*", "COLORTERM", "COLUMNS", "LINES", "TTY", "GPG_TTY", "WINDOWID",
    "WT_SESSION", "ITERM_*", "KITTY_*", "ALACRITTY_*", "WEZTERM_*", "VTE_VERSION", "KONSOLE_*",
    "TMUX", "TMUX_*", "STY", "ZELLIJ*", "LS_COLORS", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY",
    "DBUS_*", "XDG_RUNTIME_DIR", "XDG_SESSION_*", "XDG_VTNR", "XDG_SEAT*", "XDG_ACTIVATION_TOKEN",
    "DESKTOP_STARTUP_ID", "DESKTOP_SESSION", "SESSION_MANAGER", "SSH_*", "GNOME_*",
    "GIO_LAUNCHED_*", "INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "LISTEN_*",
    "MANAGERPID", "npm_*", "INIT_CWD", "NODE_CHANNEL_FD", "NODE_CHANNEL_SERIALIZATION_MODE",
    "UV_RUN_*", "VSCODE_*", "CURSOR_*", "CLAUDECODE", "CLAUDE_CODE_*", "ELECTRON_*", "CHROME_*",
    "KENNEL_*",
];

const CREDENTIAL: &[&str] = &["TOKEN", "SECRET", "PASSW", "CREDENTIAL", "COOKIE", "APIKEY"];
const CREDENTIAL_WORD: &[&str] = &["KEY", "AUTH", "AUTHORIZATION", "PAT", "PASS"];

/// The key of a command for a process with this confinement. Not used for a filtered process, which never shares.
pub(super) fn of(what: &KeyInput<'_>, confinement: &Confinement) -> String {
    let mut fields = Fields::default();
    fields.list(b"kennel key 1", &[]);
    fields.command(&program(what), what);
    let mut variables: Vec<(&[u8], &[u8])> = what
        .env
        .iter()
        .filter(|(name, _)| is_relevant(name, what.env_key))
        .map(|(name, value)| (name.as_encoded_bytes(), value.as_encoded_bytes()))
        .collect();
    variables.sort_unstable();
    for (name, value) in variables {
        fields.list(b"variable", &[name, value]);
    }
    if !what.cache {
        fields.list(b"no cache", &[]);
    }
    fields.list(b"uid", &[&UserId::current().number().to_le_bytes()]);
    for kind in ["mnt", "pid", "net", "user"] {
        let inode = confinement.namespace(kind).unwrap_or(0);
        fields.list(b"confined", &[format!("{kind} {inode}").as_bytes()]);
    }
    fields.list(b"confined", &[b"NoNewPrivs: Ok(false)"]);
    fields.list(b"confined", &[b"Seccomp: Ok(Disabled)"]);
    fields.hex()
}

fn program(what: &KeyInput<'_>) -> PathBuf {
    let Some(name) = what.command.first() else {
        return PathBuf::new();
    };
    let path = what.env.iter().find(|(variable, _)| variable == "PATH");
    let found = search_path::find(name, what.cwd, path.map(|(_, path)| path.as_os_str()));
    let found = found.unwrap_or_else(|| name.into());
    found.canonicalize().unwrap_or(found)
}

fn is_relevant(name: &OsStr, env_key: Option<&[OsString]>) -> bool {
    let is_volatile = is_volatile(name.as_encoded_bytes());
    match env_key {
        Some(names) if names.iter().any(|wanted| wanted == name) => true,
        Some(_) => is_credential(name.as_encoded_bytes()) && !is_volatile,
        None => !is_volatile,
    }
}

fn is_credential(name: &[u8]) -> bool {
    let name = name.to_ascii_uppercase();
    let has = |part: &&str| name.windows(part.len()).any(|it| it == part.as_bytes());
    let mut words = name.split(|byte| !byte.is_ascii_alphanumeric());
    CREDENTIAL.iter().any(has)
        || words.any(|word| CREDENTIAL_WORD.iter().any(|it| it.as_bytes() == word))
}

fn is_volatile(name: &[u8]) -> bool {
    VOLATILE.iter().any(|entry| match entry.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix.as_bytes()),
        None => name == entry.as_bytes(),
    })
}
