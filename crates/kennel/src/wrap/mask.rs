//! Decides which words of a command may be shown. Other people may see a diff on the screen or in an issue, so a word is
//! shown only if it is known to be harmless. Everything else is masked.

use std::path::Path;

use crate::key::rights;
use crate::names::Names;
use crate::sharing::launcher::{self, Launched};

/// Replaces masked words.
pub(crate) const MASK: &str = "…";

/// Options without a value: the next word does not belong to them.
const FLAGS: Names = Names(
    "-y --yes -q --quiet -A --allow-all -i -t -it -ti --rm --init --interactive --tty --stdio --headless \
     --isolated --no-cache --offline --verbose -v --debug --read-only --readonly --bun --prefer-offline",
);

/// Options whose values are never credentials.
const HARMLESS: Names = Names(
    "--package -m --from --with --python --directory --dir --project --spec --transport --port --host --mode \
     --browser --log-level --loglevel --timeout --platform --network --cwd --share --replay --on-change --linger \
     --grace --hibernate --stop-after --max-idle --start-timeout --owner-pid --max-line --detached",
);

/// Options whose values begin with a name: of a header for every program, of a variable for a container.
const HEADER_OPTIONS: Names = Names("-H --header");
const VARIABLE_OPTIONS: Names = Names("-e --env");

/// Words that name an action.
const SUBCOMMANDS: Names = Names(
    "run exec x dlx tool mcp serve server start stdio container mcp-server npm npx uvx node python python3 bunx \
     deno docker podman",
);

/// Programs whose first operand is an image, and their options that take a value.
const CONTAINERS: Names = Names("docker podman nerdctl");
const CONTAINER_OPTIONS: Names = Names(
    "-e --env -v --volume --mount --name -w --workdir -u --user --net --entrypoint --env-file --pull --add-host -p \
     --publish --memory --cpus --label -l --hostname --gpus --security-opt --cap-add --cap-drop --tmpfs",
);

/// Parts of the names of options whose values are masked, in addition to [credentials](rights::is_credential).
const SENSITIVE: Names = Names(
    "token key secret pass pwd pw pin auth cred cookie pat bearer header session sig cert login user account dsn \
     conn uri url env jwt otp seed private",
);

/// The words of a command, masked where necessary.
pub(crate) fn shown(command: &[String]) -> Vec<String> {
    let (before, server) = command.split_at(server_at(command));
    let mut shown = Reader::of(before).all(before);
    shown.extend(Reader::of(server).all(server));
    shown
}

/// The index of the server's first word, after `kennel run … --` or `cmd /c`.
fn server_at(command: &[String]) -> usize {
    let last = match command.first().map(|program| base(program)) {
        Some("kennel") => "--",
        Some("cmd" | "cmd.exe") => "/c",
        _ => return 0,
    };
    let at = command
        .iter()
        .position(|word| word.eq_ignore_ascii_case(last));
    at.map_or(0, |at| at + 1)
}

/// The context that the previous words give for the next one.
struct Reader {
    /// The previous option, if its value may follow.
    option: Option<String>,
    /// The names of the launched package, by the launcher's grammar.
    names: Vec<String>,
    /// Whether an image, or the name of a server, may follow.
    name_expected: bool,
    is_kennel: bool,
    is_container: bool,
    /// Whether the next word contains names of variables (Kennel's `--env-key`).
    env_names: bool,
}

impl Reader {
    fn of(command: &[String]) -> Reader {
        let program = command.first().map_or("", |program| base(program));
        let (is_kennel, is_container) = (program == "kennel", CONTAINERS.contains(program));
        Reader {
            option: None,
            names: match launcher::launched(command) {
                Some(Launched::Package { names, program, .. }) => {
                    names.into_iter().chain(program).collect()
                }
                Some(Launched::Module(name) | Launched::Script(name) | Launched::Program(name)) => {
                    vec![name]
                }
                None => Vec::new(),
            },
            name_expected: is_kennel || is_container,
            is_kennel,
            is_container,
            env_names: false,
        }
    }

    fn all(mut self, command: &[String]) -> Vec<String> {
        let words = command.iter().enumerate();
        words
            .map(|(at, word)| match at {
                0 => self.program(word),
                _ => self.mask_word(word),
            })
            .collect()
    }

    /// Whether a word is the launched package, possibly with its version.
    fn is_launched(&self, word: &str) -> bool {
        let spec = word.strip_prefix("npm:").unwrap_or(word);
        let named = |name: &String| {
            let rest = spec.strip_prefix(name.as_str());
            rest.is_some_and(|rest| {
                rest.is_empty() || rest.starts_with(['@', '=', '>', '<', '~', '['])
            }) || word.contains(&format!("node_modules/{name}/"))
        };
        is_name(spec) && self.names.iter().any(named)
    }

    fn program(&self, word: &str) -> String {
        // The path of a program is no secret, even if a directory in it looks random.
        let plain = |c: char| c.is_alphanumeric() || "/._-+".contains(c);
        let path = word.starts_with('/') && word.chars().all(plain);
        match path || is_path(word) || is_name(word) {
            true => word.to_owned(),
            false => masked(word),
        }
    }

    fn mask_word(&mut self, word: &str) -> String {
        if std::mem::take(&mut self.env_names) {
            let names = word
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "_,*".contains(c));
            return match names && !word.split(',').any(is_random) {
                true => word.to_owned(),
                false => MASK.to_owned(),
            };
        }
        if word == "--" {
            self.option = None;
            return word.to_owned();
        }
        if word.starts_with('-') && word.len() > 1 {
            return self.option(word);
        }
        match self.option.take() {
            // The package of a launcher; as an option of a server it may be a password.
            Some(option) if option == "-p" && self.is_launched(word) => word.to_owned(),
            Some(option) => {
                // The word after an unknown option may be the package instead of its value.
                let known = HARMLESS.contains(&option) || CONTAINER_OPTIONS.contains(&option);
                self.name_expected &= known;
                self.value_of(&option, word)
            }
            None => self.mask_positional(word),
        }
    }

    fn option(&mut self, word: &str) -> String {
        self.option = None;
        let is_long = word.starts_with("--");
        if let Some((name, value)) = word.split_once('=').filter(|_| is_long) {
            let (name, harmless) = (option_name(name), HARMLESS.contains(name));
            return match harmless && (is_path(value) || is_name(value)) {
                true => word.to_owned(),
                false => format!("{name}={MASK}"),
            };
        }
        if word == "--env-key" && self.is_kennel {
            self.env_names = true;
            return word.to_owned();
        }
        let is_flag = word.contains('=') || FLAGS.contains(word);
        if !is_flag || (self.is_container && CONTAINER_OPTIONS.contains(word)) {
            self.option = Some(word.to_owned());
        }
        // A short option may have its value attached: `-pPASSWORD`.
        let name = option_name(word);
        let shown = match is_long || word.len() <= 3 {
            true => name.to_owned(),
            false => word.chars().take(2).collect(),
        };
        match shown == word {
            true => shown,
            false => shown + MASK,
        }
    }

    fn value_of(&self, option: &str, value: &str) -> String {
        let name = option.trim_start_matches('-').to_lowercase();
        let sensitive = SENSITIVE.iter().any(|part| name.contains(part))
            || rights::is_credential(name.as_bytes());
        // `-e` and similar options take anything.
        let path = is_path(value) && !sensitive && option.starts_with("--");
        let harmless = HARMLESS.contains(option) && (is_name(value) || is_path(value));
        if harmless || path {
            return value.to_owned();
        }
        let separator = if HEADER_OPTIONS.contains(option) {
            Some(": ")
        } else if self.is_container && VARIABLE_OPTIONS.contains(option) {
            Some("=")
        } else {
            None
        };
        // What looks like a name in any other value may be a part of a password.
        let named = separator.and_then(|separator| named(value, separator));
        let address = (!sensitive).then(|| address(value)).flatten();
        named.or(address).unwrap_or_else(|| MASK.to_owned())
    }

    fn mask_positional(&mut self, word: &str) -> String {
        if SUBCOMMANDS.contains(word) {
            return word.to_owned();
        }
        let expected = std::mem::take(&mut self.name_expected) && is_name(word);
        let launched = self.is_launched(word);
        if launched {
            // Only once: all later words belong to the server.
            self.names.clear();
        }
        match expected || launched || is_path(word) {
            true => word.to_owned(),
            false => masked(word),
        }
    }
}

/// A masked word: of `NAME=value`, `Name: value` and addresses, the first part is shown.
fn masked(word: &str) -> String {
    if word.contains("://") {
        return address(word).unwrap_or_else(|| MASK.to_owned());
    }
    let named = named(word, "=").or_else(|| named(word, ": "));
    named.unwrap_or_else(|| MASK.to_owned())
}

/// A masked address: its scheme and its host are shown.
fn address(word: &str) -> Option<String> {
    let (scheme, rest) = word.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let (user, host) = match authority.rsplit_once('@') {
        Some((_, host)) => (format!("{MASK}@"), host),
        None => (String::new(), authority),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-+".contains(c);
    // An unescaped password may contain a character that ends the authority; then the part before it is not a host.
    let has_later_user = rest[authority.len()..].contains('@');
    if !scheme.chars().all(plain) || scheme.len() >= 20 || !is_host(host) || has_later_user {
        return None;
    }
    let tail = match rest.len() > authority.len() + 1 {
        true => format!("/{MASK}"),
        false => String::new(),
    };
    Some(format!("{scheme}://{user}{host}{tail}"))
}

/// A masked value with the name before it. `aHVudGVyMg==` has no name: nothing but padding follows.
fn named(word: &str, separator: &str) -> Option<String> {
    let (name, value) = word.split_once(separator)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    let is_name = name.chars().all(plain) && !name.is_empty() && name.len() <= 40;
    let has_value = !value.trim_matches('=').is_empty();
    let shows = is_name && has_value && !is_random(name) && !has_token(name);
    shows.then(|| format!("{name}{separator}{MASK}"))
}

/// Whether this is the name or number of a host without random parts, possibly with a port.
fn is_host(text: &str) -> bool {
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port),
        _ => (text, ""),
    };
    let in_brackets = |c: char| c.is_ascii_hexdigit() || ".:".contains(c);
    let is_plain = match name.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
        Some(number) => number.chars().all(in_brackets),
        None => name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || ".-+".contains(c)),
    };
    let is_port = port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
    is_plain && is_port && !name.split(['.', ':']).any(is_random)
}

/// The name of an option, as far as it looks like one.
fn option_name(word: &str) -> &str {
    let plain = word.find(|c: char| !(c.is_ascii_alphanumeric() || "-_.".contains(c)));
    let name = &word[..plain.unwrap_or(word.len())];
    let body = name.trim_start_matches('-');
    match name.len() <= 40 && !has_token(body) && !body.split(['-', '_', '.']).any(is_random) {
        true => name,
        false => &word[..word.len() - word.trim_start_matches('-').len()],
    }
}

/// The name of a program without its directory.
fn base(program: &str) -> &str {
    let name = Path::new(program).file_name();
    name.and_then(|name| name.to_str()).unwrap_or_default()
}

/// Whether a word is a path without random parts.
fn is_path(word: &str) -> bool {
    let Some(word) = without_variables(word) else {
        return false;
    };
    let begins = ["/", "./", "../", "~/"];
    let plain = |c: char| c.is_alphanumeric() || "/._-+~@:\\()".contains(c);
    let drive = word.as_bytes().get(1) == Some(&b':') && word.as_bytes().get(2) == Some(&b'\\');
    let drawn = |part: &str| {
        has_token(part)
            || part
                .split(['.', '-', '_', '@', '+', ':', '~'])
                .any(is_random)
    };
    (drive || begins.iter().any(|it| word.starts_with(it)) || word == "." || word == "..")
        && word.chars().all(plain)
        && !has_userinfo(&word)
        && !rights::has_credential(word.as_bytes())
        && !word.contains("//")
        && !word.split(['/', '\\']).any(drawn)
}

/// The word with `/x` for each variable that the app expands; `None` if one has a default, which may be anything.
fn without_variables(word: &str) -> Option<String> {
    let mut rest = word;
    let mut filled = String::new();
    while let Some((before, behind)) = rest.split_once("${") {
        let (name, behind) = behind.split_once('}')?;
        let plain = |c: char| c.is_ascii_alphanumeric() || "_.:".contains(c);
        if !name.chars().all(plain) || name.split([':', '.', '_']).any(is_random) {
            return None;
        }
        filled += before;
        filled += if filled.is_empty() { "/x" } else { "x" };
        rest = behind;
    }
    Some(filled + rest)
}

/// Whether a word can be the name of a program, a package or a module, possibly with its version.
fn is_name(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "@/._-+[],:".contains(c);
    let name = ["==", ">=", "<=", "~="]
        .iter()
        .find_map(|it| word.split_once(it));
    let (name, version) = name.unwrap_or((word, "0"));
    let is_version = version.len() <= 20
        && version.starts_with(|c: char| c.is_ascii_digit())
        && version
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || ".*".contains(c));
    is_version
        && name.len() <= 100
        && !name.is_empty()
        && name.chars().all(plain)
        && !has_userinfo(name)
        && !rights::has_credential(name.as_bytes())
        && !name.contains("//")
        && !name.split(['/', '@']).any(has_token)
        && !name
            .split(|c: char| !c.is_ascii_alphanumeric())
            .any(is_random)
}

/// `user:password@host`.
fn has_userinfo(word: &str) -> bool {
    let colon = word.find(':');
    colon.is_some_and(|colon| word[colon..].contains('@'))
}

/// Whether a word is a credential, or begins like one.
fn has_token(word: &str) -> bool {
    let scheme = |scheme: &str| word.len() > scheme.len() && word.starts_with(scheme);
    rights::begins_like_token(word)
        || ["Bearer", "Basic"].into_iter().any(scheme)
        || rights::has_credential(word.as_bytes())
}

/// Whether a word looks random: long, of alternating letters and digits, or of mixed case.
fn is_random(word: &str) -> bool {
    let kinds: Vec<u8> = word
        .bytes()
        .map(|byte| match byte {
            b'0'..=b'9' => 0,
            b'A'..=b'Z' => 1,
            b'a'..=b'z' => 2,
            _ => 3,
        })
        .collect();
    let changes = kinds.windows(2).filter(|pair| pair[0] != pair[1]).count();
    let digits = kinds.iter().filter(|kind| **kind == 0).count();
    let length = kinds.len();
    length > 24
        || (length >= 16 && digits > 0)
        || (length >= 8 && digits > 0 && digits < length && changes >= 3)
        || (length >= 12 && changes >= 5)
        || (length >= 9 && digits == length)
}

#[cfg(test)]
mod tests;
