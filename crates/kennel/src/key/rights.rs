//! Which variables give rights, by name or by value. Sessions with different ones never share, whichever variables are
//! ignored otherwise: the server would act for one session with the rights of another.
//!
//! The key, the check of bare clients, and the masking of `wrap` all use this one decision. A harmless variable that is
//! taken for a credential only keeps two sessions apart; a credential that is taken for harmless lets one session act
//! as the other. So in doubt it is a credential.

use super::variables::{VOLATILE, matches, matches_any};
use crate::names::Names;

/// Parts of a name whose value gives rights.
pub(crate) const CREDENTIAL: &[&str] = &[
    "TOKEN",
    "SECRET",
    "PASSW",
    "PASSPHRASE",
    "PASSCOMMAND",
    "CREDENTIAL",
    "COOKIE",
    "APIKEY",
    "ACCESSKEY",
    "ACCOUNTKEY",
    "PRIVATEKEY",
    "PRIVKEY",
    "MASTERKEY",
    "ENCRYPTIONKEY",
    "SIGNINGKEY",
    "ADMINKEY",
    "SERVICEKEY",
    "ANONKEY",
    "SSHKEY",
    "KEYFILE",
    "KEYPATH",
    "KEYSTORE",
    "PASSCODE",
    "DBPASS",
    "USERPWD",
    "OAUTH",
    "BASICAUTH",
    "HTTPAUTH",
    "BEARER",
    "WEBHOOK",
    "MNEMONIC",
    "CONNECTION_STRING",
    "CONNECTIONSTRING",
    "SERVICE_ACCOUNT",
    "ACCESSSIGNATURE",
    "ACCESS_SIGNATURE",
    "APPKEY",
    "CLIENTCERT",
    "CLIENT_CERT",
    "SEEDPHRASE",
    "SEED_PHRASE",
];
/// The same, as a whole word of the name.
pub(crate) const CREDENTIAL_WORD: &[&str] = &[
    "KEY",
    "KEYS",
    "AUTH",
    "AUTHORIZATION",
    "PAT",
    "PATS",
    "PASS",
    "PWD",
    "PW",
    "JWT",
    "JWTS",
    "DSN",
    "CRED",
    "CREDS",
    "OTP",
    "TOTP",
    "PIN",
    "PEM",
    "SAS",
    "NKEY",
];
/// The same, as the last word: `HEADERS_PATH` is a directory.
pub(crate) const CREDENTIAL_LAST_WORD: &[&str] = &["HEADER", "HEADERS"];
/// The same, as a word of a name that is not in [`VOLATILE`]: most names there with this word belong to a terminal or
/// desktop session, the others to a login.
pub(crate) const CREDENTIAL_UNLESS_VOLATILE: &[&str] = &["SESSION", "SESSIONID", "JSESSIONID"];
/// The same, as the whole name: files with credentials, and which of the credentials in them are used.
pub(crate) const CREDENTIAL_NAME: &[&str] = &[
    "DATABASE_URL",
    "KUBECONFIG",
    "PGPASSFILE",
    "PGSERVICE",
    "PGSERVICEFILE",
    "SSHPASS",
    "NETRC",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_CONFIG_FILE",
    "AWS_ROLE_ARN",
    "CLOUDSDK_CONFIG",
    "CLOUDSDK_ACTIVE_CONFIG_NAME",
    "CLOUDSDK_CORE_ACCOUNT",
    "AZURE_CONFIG_DIR",
    "DOCKER_CONFIG",
    "GH_CONFIG_DIR",
    "GLAB_CONFIG_DIR",
    "GNUPGHOME",
    "KRB5CCNAME",
    "X509_USER_PROXY",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "DATABRICKS_CONFIG_PROFILE",
    "OCI_CLI_PROFILE",
];

/// Names that look like a credential and give no rights: a directory, identifiers of a window, a shell or a login, a
/// public key, and the address of an agent that every program of this user can reach. [`VOLATILE`] decides whether they
/// count.
pub(crate) const NO_CREDENTIAL: &[&str] = &[
    "PWD",
    "XDG_ACTIVATION_TOKEN",
    "XDG_SESSION_COOKIE",
    "KONSOLE_DBUS_ACTIVATION_COOKIE",
    "STARSHIP_SESSION_KEY",
    "KITTY_PUBLIC_KEY",
    "SSH_AUTH_SOCK",
    // They let a process talk to the window that started it, and change with every window.
    "VSCODE_GIT_IPC_AUTH_TOKEN",
    "GEMINI_CLI_IDE_AUTH_TOKEN",
    "WINDSURF_CSRF_TOKEN",
];

/// Settings within a value that give rights, in addition to those that would give rights as the name of a variable.
pub(crate) const CREDENTIAL_SETTING: &[&str] =
    &["PWD", "SIG", "SIGNATURE", "X-AMZ-SIGNATURE", "CODE"];

/// Prefixes of well-known tokens, and the minimum number of characters after them: `sk-` followed by an English word is
/// no token.
const TOKENS: Names = Names(
    "sk-/20 sk_/20 pk_/20 rk_/20 ghp_/20 gho_/20 ghu_/20 ghs_/20 ghr_/20 github_pat_/20 glpat-/16 xox/10 xapp-/10 \
     AKIA/12 ASIA/12 eyJ/12 AIza/20 ya29./10 npm_/36 pypi-AgE/20 hf_/20 figd_/20 ntn_/20 secret_/30 lin_api_/20 \
     ATATT/20 pplx-/20 tvly-/16 fc-/30 ctx7sk/12 sntry/20 sbp_/20 pat-/30 shpat_/20 dop_v1_/20 gsk_/20 r8_/20 \
     whsec_/16 SG./30 xai-/20 hvs./20 hvb./20 dapi/30 tskey-/16 LS0tLS1CRUdJTi/0",
);
/// The prefix of a JSON web token.
const JWT: &str = "eyJ";
/// Minimum number of characters of a token.
const MIN_TOKEN_LENGTH: usize = 13;

/// Parts of addresses that give rights to everyone who knows them.
const SECRET_ADDRESSES: Names = Names(
    "hooks.slack.com/services/ discord.com/api/webhooks/ discordapp.com/api/webhooks/ webhook.office.com/ \
     api.telegram.org/bot infura.io/v3/ alchemy.com/v2/",
);

/// Whether a variable gives rights.
pub(crate) fn are_given_by(name: &[u8], value: &[u8]) -> bool {
    is_credential(name) || has_credential(value)
}

/// Whether the value of a variable gives rights, by its name. Every start of a session checks all names, so this
/// allocates nothing.
pub(crate) fn is_credential(name: &[u8]) -> bool {
    let begins_here = |at| matches_any(CREDENTIAL, &name[at..], begins_with);
    let is_credential = || {
        is_one_of(CREDENTIAL_NAME, name)
            || (0..name.len()).any(begins_here)
            || words(name).any(|word| is_one_of(CREDENTIAL_WORD, word))
            || last_word(name).is_some_and(|word| is_one_of(CREDENTIAL_LAST_WORD, word))
            || (words(name).any(|word| is_one_of(CREDENTIAL_UNLESS_VOLATILE, word))
                && !matches(VOLATILE, name))
    };
    !is_one_of(NO_CREDENTIAL, name) && is_credential()
}

/// Whether a value gives rights, whatever its variable is called.
pub(crate) fn has_credential(value: &[u8]) -> bool {
    has_password(value)
        || has_credential_setting(value)
        || has_scheme(value)
        || has_database_login(value)
        || has_private_key(value)
        || has_token(value)
        || is_secret_address(value)
}

/// Whether a word begins like a well-known token, however long it is.
pub(crate) fn begins_like_token(word: &str) -> bool {
    let longer = |prefix: &str| word.len() > prefix.len() && word.starts_with(prefix);
    tokens().any(|(prefix, _)| longer(prefix))
}

fn tokens() -> impl Iterator<Item = (&'static str, usize)> {
    TOKENS.iter().map(|entry| {
        let (prefix, length) = entry.rsplit_once('/').expect("a length");
        (prefix, length.parse().expect("a number"))
    })
}

fn has_token(value: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.".contains(byte);
    let runs = value.split(|byte| !is_part(byte));
    let mut long = runs.filter(|run| run.len() >= MIN_TOKEN_LENGTH);
    long.any(|run| {
        tokens().any(|(prefix, length)| {
            let rest = run.strip_prefix(prefix.as_bytes());
            rest.is_some_and(|rest| rest.len() >= length && (prefix != JWT || is_signed(rest)))
        })
    })
}

/// Whether a JSON web token has its three parts.
fn is_signed(token: &[u8]) -> bool {
    let parts = token.split(|byte| *byte == b'.');
    parts.filter(|part| !part.is_empty()).count() >= 3
}

fn has_private_key(value: &[u8]) -> bool {
    // Most values are too short, and every start of a session checks all of them.
    let begin = || position(value, b"-----BEGIN ");
    value.len() > 20 && begin().is_some_and(|at| finds(&value[at..], b"PRIVATE KEY"))
}

fn is_secret_address(value: &[u8]) -> bool {
    let mut addresses = SECRET_ADDRESSES.iter();
    value.contains(&b':') && addresses.any(|address| finds(value, address.as_bytes()))
}

/// Whether a value is the content of an `Authorization:` header, with or without that name: `Bearer …`, `Basic …`,
/// `Token …`.
fn has_scheme(value: &[u8]) -> bool {
    let mut places = value.iter().enumerate().filter(|(_, byte)| **byte == b' ');
    places.any(|(at, _)| {
        let (before, rest) = (&value[..at], value[at..].trim_ascii_start());
        let start = before.iter().rposition(|byte| !byte.is_ascii_alphabetic());
        let start = start.map_or(0, |at| at + 1);
        if !is_one_of(&["Bearer", "Basic", "Token"], &before[start..]) {
            return false;
        }
        let end = rest.iter().position(|byte| b" \t\r\n\"',;".contains(byte));
        let (word, behind) = rest.split_at(end.unwrap_or(rest.len()));
        // In a sentence, more words follow.
        let is_last = !behind.first().is_some_and(|byte| b" \t".contains(byte));
        !word.is_empty() && is_last
    })
}

/// Whether a value contains a setting with the name of a credential: `?password=…`, `;AccountKey=…`, `host=h
/// password=…`, `X-Api-Key: …`, `{"token":"…"}`, `--token …`.
fn has_credential_setting(value: &[u8]) -> bool {
    let mut places = value.iter().enumerate();
    places.any(|(at, byte)| {
        let (before, behind) = (&value[..at], &value[at + 1..]);
        let is_setting = match byte {
            b'=' => true,
            b':' => {
                let is_quoted = before.trim_ascii_end().last().is_some_and(is_quote);
                is_quoted || behind.first().is_some_and(u8::is_ascii_whitespace)
            }
            b' ' => is_option(before) && !behind.starts_with(b"-"),
            _ => false,
        };
        is_setting && is_credential_setting(before, behind)
    })
}

fn is_quote(byte: &u8) -> bool {
    b"\"'".contains(byte)
}

/// Whether text ends with the name of an option: `--token`.
fn is_option(text: &[u8]) -> bool {
    let start = text.iter().rposition(u8::is_ascii_whitespace);
    text[start.map_or(0, |at| at + 1)..].starts_with(b"--")
}

/// Whether `before` ends with the name of a credential, and a value follows.
fn is_credential_setting(before: &[u8], value: &[u8]) -> bool {
    let before = before.trim_ascii_end();
    let before = match before.split_last() {
        Some((last, rest)) if is_quote(last) => rest,
        _ => before,
    };
    let before = before.strip_suffix(b"\\").unwrap_or(before);
    let value = value.trim_ascii_start();
    let value = value.strip_prefix(b"\\").unwrap_or(value);
    let value = match value.split_first() {
        Some((first, rest)) if is_quote(first) => rest,
        _ => value,
    };
    if value.first().is_none_or(|byte| b"&;,\"'\\".contains(byte)) {
        return false;
    }
    let in_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-".contains(byte);
    let in_words = |byte: &u8| in_word(byte) || *byte == b' ';
    // The last word, or several: `Account Key`.
    is_credential_behind(before, in_word) || is_credential_behind(before, in_words)
}

fn is_credential_behind(before: &[u8], in_name: impl Fn(&u8) -> bool) -> bool {
    let start = before.iter().rposition(|byte| !in_name(byte));
    let start = start.map_or(0, |at| at + 1);
    let name = &before[start..];
    let delimiter = start.checked_sub(1).map(|at| before[at]);
    delimiter.is_none_or(|byte| b" \t\r\n?&;,#{[(\"'|".contains(&byte))
        && (is_one_of(CREDENTIAL_SETTING, name) || is_credential(name))
}

/// Whether a value is an address with user and password, `scheme://user:password@host`, or with a token in their place,
/// `https://token@host`.
fn has_password(value: &[u8]) -> bool {
    addresses(value).any(|(before, rest)| {
        let scheme = |scheme: &[u8]| {
            let at = before.len().checked_sub(scheme.len());
            at.is_some_and(|at| before[at..].eq_ignore_ascii_case(scheme))
        };
        let is_http = scheme(b"http") || scheme(b"https");
        // Database drivers accept passwords that should be escaped: `postgres://user:pass/word@host`.
        let ends: &[u8] = if is_http { b"/?# ,\t\n" } else { b" ,\t\n" };
        has_login(is_http, rest, ends)
    })
}

/// The addresses in a value: the text before each `://`, and the text after it.
pub(crate) fn addresses(value: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let colons = value.iter().enumerate().filter(|(_, byte)| **byte == b':');
    colons.filter_map(|(at, _)| {
        let rest = value[at..].strip_prefix(b"://")?;
        Some((&value[..at], rest))
    })
}

/// Whether an address begins with user and password, or over HTTP with anything before an `@`. One of `ends` follows the
/// host.
pub(crate) fn has_login(is_http: bool, address: &[u8], ends: &[u8]) -> bool {
    let end = address.iter().position(|byte| ends.contains(byte));
    let authority = &address[..end.unwrap_or(address.len())];
    let Some(at) = authority.iter().rposition(|&byte| byte == b'@') else {
        return false;
    };
    let user = &authority[..at];
    let colon = user.iter().position(|&byte| byte == b':');
    (is_http && !user.is_empty()) || colon.is_some_and(|at| at + 1 < user.len())
}

/// Whether a value has user and password in the syntax of database drivers: `user:password@tcp(host)`,
/// `user:password@/name` and Oracle's `user/password@host`.
fn has_database_login(value: &[u8]) -> bool {
    let mut places = value.iter().enumerate().filter(|(_, byte)| **byte == b'@');
    places.any(|(at, _)| {
        let (before, behind) = (&value[..at], &value[at + 1..]);
        let start = before.iter().rposition(|byte| b" \t\r\n\"'".contains(byte));
        let login = &before[start.map_or(0, |at| at + 1)..];
        let network = behind
            .iter()
            .position(|byte| !byte.is_ascii_alphanumeric())
            .unwrap_or(behind.len());
        let is_go = match behind.get(network) {
            Some(b'(') => network > 0,
            Some(b'/') => network == 0 && !behind.starts_with(b"//"),
            _ => false,
        };
        let split = |separator: u8| {
            let at = login.iter().position(|byte| *byte == separator)?;
            let (user, password) = (&login[..at], &login[at + 1..]);
            (!password.is_empty() && !password.contains(&b'/')).then_some(user)
        };
        (is_go && split(b':').is_some_and(|user| !user.contains(&b'/')))
            || (is_oracle_host(behind) && split(b'/').is_some_and(is_oracle_user))
    })
}

/// Whether the text after `user/password@` can be a host: after the name of a package or an action, a version follows.
fn is_oracle_host(host: &[u8]) -> bool {
    let number = host.strip_prefix(b"v").unwrap_or(host);
    let is_version = number.first().is_some_and(u8::is_ascii_digit) && !host.contains(&b':');
    let in_host = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-:/".contains(byte);
    !host.is_empty() && !is_version && host.iter().all(in_host)
}

fn is_oracle_user(user: &[u8]) -> bool {
    let user = user.strip_prefix(b"jdbc:oracle:thin:").unwrap_or(user);
    let user = user.strip_prefix(b"jdbc:oracle:oci:").unwrap_or(user);
    let in_user = |byte: &u8| byte.is_ascii_alphanumeric() || b"_$#".contains(byte);
    user.first().is_some_and(u8::is_ascii_alphabetic) && user.iter().all(in_user)
}

/// Whether a name has this prefix, ignoring case.
pub(crate) fn begins_with(beginning: &[u8], name: &[u8]) -> bool {
    let name = name.get(..beginning.len());
    name.is_some_and(|name| name.eq_ignore_ascii_case(beginning))
}

pub(crate) fn is_one_of(list: &[&str], word: &[u8]) -> bool {
    list.iter()
        .any(|it| it.as_bytes().eq_ignore_ascii_case(word))
}

/// The words of a name and the separators between them: `githubPat2` has `github`, `Pat` and `2`, `AWSKey` has `AWS`
/// and `Key`.
fn words(mut name: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let end = (1..name.len()).find(|&at| is_between_words(name, at));
        let (word, rest) = name.split_at(end.unwrap_or(name.len()));
        name = rest;
        (!word.is_empty()).then_some(word)
    })
}

/// Whether a word ends, or another begins, at this place of a name.
fn is_between_words(name: &[u8], at: usize) -> bool {
    let (last, next) = (name[at - 1], name[at]);
    if !last.is_ascii_alphanumeric() || !next.is_ascii_alphanumeric() {
        return true;
    }
    let hump = next.is_ascii_uppercase()
        && (last.is_ascii_lowercase() || name.get(at + 1).is_some_and(u8::is_ascii_lowercase));
    hump || last.is_ascii_digit() != next.is_ascii_digit()
}

/// The last word that is not a number.
fn last_word(name: &[u8]) -> Option<&[u8]> {
    let is_word = |word: &&[u8]| word.iter().any(u8::is_ascii_alphabetic);
    words(name).filter(is_word).last()
}

fn position(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|it| it == part)
}

fn finds(text: &[u8], part: &[u8]) -> bool {
    position(text, part).is_some()
}

#[cfg(test)]
pub(crate) mod tests;
