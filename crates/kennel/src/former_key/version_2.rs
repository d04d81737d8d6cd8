//! The key of version 2. Other variables gave rights, and with `--env-key` those that a server in the table reads did not
//! count; the rest equals the present formula. It must not change: before changing code that both use, copy it here.

use std::ffi::{OsStr, OsString};

use kennel_sys::confinement::Confinement;

use crate::key::rights::{self, begins_with, is_one_of};
use crate::key::variables::{self, Ecosystem, VariableInput, matches_any};
use crate::key::{self, KeyInput};

/// The version in a hello for a daemon with a former key.
pub(crate) const VERSION: u32 = 2;

#[rustfmt::skip]
const CREDENTIAL: &[&str] = &[
    "TOKEN", "SECRET", "PASSW", "PASSPHRASE", "CREDENTIAL", "COOKIE", "APIKEY", "ACCESSKEY", "PRIVATEKEY",
    "SSHKEY", "PASSCODE", "DBPASS", "OAUTH", "CONNECTION_STRING", "CONNECTIONSTRING", "SERVICE_ACCOUNT",
];
#[rustfmt::skip]
const CREDENTIAL_WORD: &[&str] = &[
    "KEY", "KEYS", "AUTH", "AUTHORIZATION", "PAT", "PASS", "PWD", "JWT", "DSN", "CRED", "CREDS",
];
#[rustfmt::skip]
const CREDENTIAL_NAME: &[&str] = &[
    "DATABASE_URL", "KUBECONFIG", "PGPASSFILE", "SSHPASS",
];
#[rustfmt::skip]
const NO_CREDENTIAL: &[&str] = &[
    "PWD", "XDG_ACTIVATION_TOKEN", "XDG_SESSION_COOKIE", "KONSOLE_DBUS_ACTIVATION_COOKIE",
    "STARSHIP_SESSION_KEY", "KITTY_PUBLIC_KEY", "SSH_AUTH_SOCK", "VSCODE_GIT_IPC_AUTH_TOKEN",
    "GEMINI_CLI_IDE_AUTH_TOKEN", "WINDSURF_CSRF_TOKEN",
];

/// The key of a command for a process with this confinement.
pub(super) fn of(what: &KeyInput<'_>, confinement: &Confinement) -> String {
    let ecosystem = Ecosystem::of(what.command);
    let always = |name: &OsStr, value: &OsStr| always_counts(name, value, what.env, ecosystem);
    key::of_version(VERSION, what, confinement, always)
}

/// The names of the variables that counted.
pub(super) fn counted(what: VariableInput<'_>) -> Vec<OsString> {
    variables::counted_or(what, |name, value| {
        always_counts(name, value, what.env, what.ecosystem)
    })
}

fn always_counts(
    name: &OsStr,
    value: &OsStr,
    env: &[(OsString, OsString)],
    ecosystem: Option<Ecosystem>,
) -> bool {
    gives_rights(name.as_encoded_bytes(), value.as_encoded_bytes())
        || variables::is_read_registry(name, value, env, ecosystem)
}

/// Whether a variable gives rights, by its name or by its value: an address with a password or a token, or a connection
/// string with one (`AccountKey=…`).
fn gives_rights(name: &[u8], value: &[u8]) -> bool {
    is_credential(name) || has_password(value) || has_credential_setting(value)
}

/// Whether a value contains a setting with the name of a credential: `?password=…`, `;AccountKey=…`.
fn has_credential_setting(value: &[u8]) -> bool {
    // Most values contain none, and every start of a session checks all of them.
    if !value.contains(&b'=') {
        return false;
    }
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_- ".contains(byte);
    let mut settings = value.split(|byte| b"?&;\n".contains(byte));
    settings.any(|setting| {
        let end = setting.iter().position(|&byte| byte == b'=');
        end.is_some_and(|end| {
            let name = &setting[..end];
            // As the name of a variable, PWD is a directory.
            let is_pwd = name.eq_ignore_ascii_case(b"pwd");
            let has_value = end + 1 < setting.len() && name.iter().all(plain);
            has_value && (is_pwd || is_credential(name))
        })
    })
}

/// Whether a value is an address with user and password, `scheme://user:password@host`, or with a token in their place,
/// `https://token@host`.
fn has_password(value: &[u8]) -> bool {
    rights::addresses(value).any(|(before, rest)| {
        let is_http = before.ends_with(b"http") || before.ends_with(b"https");
        rights::has_login(is_http, rest, b"/?# ,\t\n")
    })
}

/// Whether the value of a variable gives rights, by its name. Every start of a session checks all names, so this
/// allocates nothing.
fn is_credential(name: &[u8]) -> bool {
    let is = |it: &&str| it.as_bytes().eq_ignore_ascii_case(name);
    let begins_here = |at| matches_any(CREDENTIAL, &name[at..], begins_with);
    let is_credential = || {
        CREDENTIAL_NAME.iter().any(is)
            || (0..name.len()).any(begins_here)
            || words(name).any(|word| is_one_of(CREDENTIAL_WORD, word))
    };
    !NO_CREDENTIAL.iter().any(is) && is_credential()
}

/// The words of a name and the separators between them: `githubPat2` has `github`, `Pat` and `2`.
fn words(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    name.chunk_by(|last, next| {
        let hump = last.is_ascii_lowercase() && next.is_ascii_uppercase();
        let number = last.is_ascii_alphabetic() && next.is_ascii_digit();
        last.is_ascii_alphanumeric() && next.is_ascii_alphanumeric() && !hump && !number
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_key_of_version_2_is_as_builds_with_it_computed_it() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let env: Vec<(OsString, OsString)> = [
            ("A", "1"),
            ("API_KEY", "1"),
            ("DB", "pg://a:1@h"),
            ("PIP_INDEX_URL", "1"),
            ("Q", "?password=1"),
            ("SSHPASS", "1"),
            ("githubPat2", "1"),
            // These do not count.
            ("B", "1"),
            ("PWD", "1"),
            ("BW_SESSION", "1"),
            ("C", "Bearer 1"),
            ("AWS_PROFILE", "1"),
        ]
        .map(|(name, value)| (name.into(), value.into()))
        .into();
        let (command, named) = (words(&["/none/x", "y"]), words(&["A"]));
        let names = counted(VariableInput {
            env: &env,
            env_key: Some(&named),
            known: Some(&["B"]),
            cwd_given: false,
            ecosystem: None,
        });
        let what = KeyInput {
            command: &command,
            cwd: Path::new("/"),
            env: &env,
            names: &names,
            env_key: Some(&named),
            cache: true,
        };
        let always = |name: &OsStr, value: &OsStr| always_counts(name, value, &env, None);
        let hash = key::digest_of(VERSION, &what, 7, &["so".to_owned()], always);
        // Computed by a separate program.
        let expected = "ee46f9594ec76faad31f06c4ee73717009736a3bde9dec3c8c4d8e3f55b4c5ae";
        assert_eq!(hash, expected);
    }
}
