//! Which words of a command may be shown. A diff is read over shoulders and pasted into issues, so a word is
//! shown only if it is known to be harmless: everything else is masked, known secret or not.

use std::path::Path;

use crate::key::rights;
use crate::names::Names;
use crate::sharing::launcher::{self, Launched};

/// Replaces what is not shown.
pub(crate) const MASK: &str = "…";

/// Options without a value: the next word is not theirs.
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

/// Words that say what to do, not with what.
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

/// Parts of an option's name whose value is not shown, beside those of [credentials](rights::is_credential).
const SENSITIVE: Names = Names(
    "token key secret pass pwd pw pin auth cred cookie pat bearer header session sig cert login user account dsn \
     conn uri url env jwt otp seed private",
);

/// The words of a command as they may be shown.
pub(crate) fn shown(command: &[String]) -> Vec<String> {
    let (before, server) = command.split_at(server_at(command));
    let mut shown = Reader::of(before).all(before);
    shown.extend(Reader::of(server).all(server));
    shown
}

/// Where the words of the server begin, behind `kennel run … --` or `cmd /c`.
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

/// What the words before say about the next one.
struct Reader {
    /// The option before, if its value may follow.
    option: Option<String>,
    /// What is launched, as the launcher's grammar says.
    names: Vec<String>,
    /// Whether an image, or the name of a server, may follow.
    name_expected: bool,
    is_kennel: bool,
    is_container: bool,
    /// Whether the next word has names of variables (Kennel's `--env-key`).
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
                _ => self.word(word),
            })
            .collect()
    }

    /// Whether a word is what is launched, with its version.
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
        // The path of a program is no secret, though a directory in it may look drawn.
        let plain = |c: char| c.is_alphanumeric() || "/._-+".contains(c);
        let path = word.starts_with('/') && word.chars().all(plain);
        match path || is_path(word) || is_name(word) {
            true => word.to_owned(),
            false => masked(word),
        }
    }

    fn word(&mut self, word: &str) -> String {
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
            // A launcher's package; of a server it may be a password.
            Some(option) if option == "-p" && self.is_launched(word) => word.to_owned(),
            Some(option) => {
                // Of an option nobody knows, the word may be no value but the name.
                let known = HARMLESS.contains(&option) || CONTAINER_OPTIONS.contains(&option);
                self.name_expected &= known;
                value_of(&option, word)
            }
            None => self.positional(word),
        }
    }

    fn option(&mut self, word: &str) -> String {
        self.option = None;
        if let Some((name, value)) = word.split_once('=') {
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
        if !FLAGS.contains(word) || (self.is_container && CONTAINER_OPTIONS.contains(word)) {
            self.option = Some(word.to_owned());
        }
        // A short option may have its value attached: `-pPASSWORD`.
        let is_long = word.starts_with("--");
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

    fn positional(&mut self, word: &str) -> String {
        if SUBCOMMANDS.contains(word) {
            return word.to_owned();
        }
        let expected = std::mem::take(&mut self.name_expected) && is_name(word);
        let launched = self.is_launched(word);
        if launched {
            // Once: what follows is the server's.
            self.names.clear();
        }
        match expected || launched || is_path(word) {
            true => word.to_owned(),
            false => masked(word),
        }
    }
}

fn value_of(option: &str, value: &str) -> String {
    let harmless = HARMLESS.contains(option) && is_name(value);
    let name = option.trim_start_matches('-').to_lowercase();
    let sensitive =
        SENSITIVE.iter().any(|part| name.contains(part)) || rights::is_credential(name.as_bytes());
    // `-e` and the like take anything.
    let path = is_path(value) && !sensitive && option.starts_with("--");
    match harmless || (HARMLESS.contains(option) && is_path(value)) || path {
        true => value.to_owned(),
        false => masked(value),
    }
}

/// A masked word: of `NAME=value`, `Name: value` and addresses, the first part is shown.
fn masked(word: &str) -> String {
    if let Some((scheme, rest)) = word.split_once("://") {
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (user, host) = match authority.rsplit_once('@') {
            Some((_, host)) => (format!("{MASK}@"), host),
            None => (String::new(), authority),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-+".contains(c);
        // A password that is not escaped may hold what ends an authority: then what stands before is not a host.
        let has_later_user = rest[authority.len()..].contains('@');
        if scheme.chars().all(plain) && scheme.len() < 20 && is_host(host) && !has_later_user {
            let tail = if rest.len() > authority.len() + 1 {
                format!("/{MASK}")
            } else {
                String::new()
            };
            return format!("{scheme}://{user}{host}{tail}");
        }
        return MASK.to_owned();
    }
    for separator in ["=", ": "] {
        if let Some((name, _)) = word.split_once(separator) {
            let plain = name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
            if plain && !name.is_empty() && name.len() <= 40 && !is_random(name) && !has_token(name)
            {
                return format!("{name}{separator}{MASK}");
            }
        }
    }
    MASK.to_owned()
}

/// Whether it is the name or number of a host with nothing random in it, and a port if any.
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

/// Whether a word is a path of the file system, with nothing random in it.
fn is_path(word: &str) -> bool {
    let Some(word) = filled_in(word) else {
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

/// The word with `/x` for each variable that the app fills in; none if one has a default, which may be anything.
fn filled_in(word: &str) -> Option<String> {
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

/// Whether a word can be the name of a program, a package or a module, with its version.
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

/// Whether a word looks drawn rather than written: long, or of letters and digits in turn, or of mixed case.
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
