//! The key: which sessions may share a daemon. The hash of command, directory, environment, user and confinement.
//!
//! A shim computes it to find its daemon. The daemon computes it again for each client, from the client's hello and
//! from what the kernel says about the client's confinement, and refuses a client with another key.

pub(crate) mod rights;
pub(crate) mod variables;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use kennel_core::hello::{ClientHello, Text};
use kennel_sys::confinement::Confinement;
use kennel_sys::text::os_string;
use kennel_sys::user::UserId;
use sha2::{Digest, Sha256};
use variables::Always;

use crate::{former_key, hex, search_path};

/// The version of the formula: it is part of the hash and of every hello.
pub(crate) const VERSION: u32 = kennel_core::hello::KEY_VERSION;

/// Number of the hash's hexadecimal digits in a key.
const DIGITS: usize = 16;

/// The input of a key, apart from user and confinement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyInput<'a> {
    /// Program and arguments.
    pub(crate) command: &'a [OsString],
    /// The directory the server runs in.
    pub(crate) cwd: &'a Path,
    /// Its whole environment.
    pub(crate) env: &'a [(OsString, OsString)],
    /// The names of the variables that count ([`variables::counted`]). Those that [always count](variables::Always)
    /// count even if they are not listed here.
    pub(crate) names: &'a [OsString],
    /// The names given with `--env-key`: only these count, set or not.
    pub(crate) env_key: Option<&'a [OsString]>,
    /// Whether lists may be answered from the cache.
    pub(crate) cache: bool,
}

/// The key of a command for a process of this user with this confinement: hexadecimal digits. If the confinement could
/// not be read, the key serves only as a name.
pub(crate) fn of(what: &KeyInput<'_>, confinement: Option<&Confinement>) -> String {
    let mut hash = hash_of(what, confinement);
    hash.truncate(DIGITS);
    hash
}

/// The whole hash, of which the key is the beginning.
fn hash_of(what: &KeyInput<'_>, confinement: Option<&Confinement>) -> String {
    let facts = confinement.map_or_else(|| vec!["not seen".to_owned()], Confinement::facts);
    digest(what, UserId::current().number(), &facts)
}

/// Computes the key of this version. `always_counts`: the variables that count in any case.
pub(crate) fn of_version(
    version: u32,
    what: &KeyInput<'_>,
    confinement: &Confinement,
    always_counts: impl Fn(&OsStr, &OsStr) -> bool,
) -> String {
    let uid = UserId::current().number();
    let mut hash = digest_of(version, what, uid, &confinement.facts(), always_counts);
    hash.truncate(DIGITS);
    hash
}

/// The key of the client with this hello and confinement; `None` if its key is of another version.
pub(crate) fn of_hello(hello: &ClientHello, confinement: &Confinement) -> Option<String> {
    with_key_input(hello, |what| of(what, Some(confinement)))
}

/// The whole hash, of which this key is the beginning. Clients with the same key can have different hashes: a collision
/// of the short key can be computed.
pub(crate) fn hash_of_hello(hello: &ClientHello, confinement: &Confinement) -> Option<String> {
    with_key_input(hello, |what| hash_of(what, Some(confinement)))
}

/// Calls `compute` with the input of a hello's key; `None` if the key is of another version.
pub(crate) fn with_key_input<T>(
    hello: &ClientHello,
    compute: impl FnOnce(&KeyInput<'_>) -> T,
) -> Option<T> {
    // To a daemon with a former key, sessions send a hello that builds with that key understand.
    let is_known = |version| [VERSION, former_key::VERSION].contains(&version);
    let fields = hello.key.as_ref().filter(|key| is_known(key.version))?;
    let os = |text: &Text| os_string(text.as_bytes());
    let list = |words: &[Text]| words.iter().map(os).collect::<Vec<_>>();
    let pair = |(name, value): &(Text, Text)| (os(name), os(value));
    let cwd = PathBuf::from(os(&hello.spec.cwd));
    let env_key = fields.env_key.as_deref().map(list);
    let what = KeyInput {
        command: &list(&hello.spec.command),
        cwd: &cwd,
        env: &hello.env.iter().map(pair).collect::<Vec<_>>(),
        names: &list(&fields.names),
        env_key: env_key.as_deref(),
        cache: !fields.no_cache,
    };
    Some(compute(&what))
}

fn digest(what: &KeyInput<'_>, uid: u32, confinement: &[String]) -> String {
    let always = Always::of(what.command);
    let always_counts = |name: &OsStr, value: &OsStr| always.counts(name, value, what.env);
    digest_of(VERSION, what, uid, confinement, always_counts)
}

/// The whole hash, by the formula of a version: versions differ in the variables that always count.
pub(crate) fn digest_of(
    version: u32,
    what: &KeyInput<'_>,
    uid: u32,
    confinement: &[String],
    always_counts: impl Fn(&OsStr, &OsStr) -> bool,
) -> String {
    let mut fields = Fields::default();
    fields.list(b"kennel key", &[&version.to_le_bytes()]);
    fields.command(&program(what), what);
    if let Some(names) = what.env_key {
        // Includes the names of variables that are not set: sessions with different `--env-key` differ.
        let mut names: Vec<&[u8]> = names.iter().map(|name| name.as_encoded_bytes()).collect();
        names.sort_unstable();
        names.dedup();
        fields.list(b"only names", &names);
    }
    let mut names: Vec<&OsString> = what.names.iter().collect();
    names.sort_unstable();
    let mut variables: Vec<(&[u8], &[u8])> = what
        .env
        .iter()
        .filter(|(name, value)| names.binary_search(&name).is_ok() || always_counts(name, value))
        .map(|(name, value)| (name.as_encoded_bytes(), value.as_encoded_bytes()))
        .collect();
    // If a name is set twice, the server gets the last value: the order of values counts.
    variables.sort_by_key(|(name, _)| *name);
    for (name, value) in variables {
        fields.list(b"variable", &[name, value]);
    }
    if !what.cache {
        fields.list(b"no cache", &[]);
    }
    fields.list(b"uid", &[&uid.to_le_bytes()]);
    for fact in confinement {
        fields.list(b"confined", &[fact.as_bytes()]);
    }
    fields.finish()
}

/// Hashes each field with its length before it, so that no two lists give the same bytes.
#[derive(Default)]
pub(crate) struct Fields(Sha256);

impl Fields {
    pub(crate) fn hex(self) -> String {
        self.finish()[..DIGITS].to_owned()
    }

    fn finish(self) -> String {
        hex::text(&self.0.finalize())
    }

    /// The program, the command and its directory, in the same way in all versions.
    pub(crate) fn command(&mut self, program: &Path, what: &KeyInput<'_>) {
        self.list(b"program", &[program.as_os_str().as_encoded_bytes()]);
        let words = what.command.iter().map(|word| word.as_encoded_bytes());
        self.list(b"command", &words.collect::<Vec<_>>());
        let cwd = what.cwd.canonicalize();
        let cwd = cwd.as_deref().unwrap_or(what.cwd);
        self.list(b"cwd", &[cwd.as_os_str().as_encoded_bytes()]);
    }

    pub(crate) fn list(&mut self, name: &[u8], members: &[&[u8]]) {
        self.one(name);
        self.0.update((members.len() as u64).to_le_bytes());
        for member in members {
            self.one(member);
        }
    }

    fn one(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }
}

/// The real path of the program: two names of one file are one program, and a new version is another.
fn program(what: &KeyInput<'_>) -> PathBuf {
    let Some(name) = what.command.first() else {
        return PathBuf::new();
    };
    // If a variable is set twice, the server gets the last value.
    let mut env = what.env.iter().rev();
    let path = env.find(|(variable, _)| variable == "PATH");
    let found = search_path::find(name, what.cwd, path.map(|(_, path)| path.as_os_str()));
    let found = found.unwrap_or_else(|| name.into());
    // The Python of a virtual environment is a link to another Python, but finds its packages by its own path.
    let environment = found.parent().and_then(Path::parent);
    if environment.is_some_and(|dir| dir.join("pyvenv.cfg").is_file()) {
        return found;
    }
    found.canonicalize().unwrap_or(found)
}

#[cfg(test)]
mod tests {
    use kennel_core::hello::KeyFields;

    use super::rights::NO_CREDENTIAL;
    use super::variables::{REGISTRY, VOLATILE};
    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    fn env(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        let pair = |(name, value): &(&str, &str)| (name.into(), value.into());
        pairs.iter().map(pair).collect()
    }

    fn hex(command: &[&str], pairs: &[(&str, &str)]) -> String {
        key(command, pairs, None)
    }

    fn key(command: &[&str], pairs: &[(&str, &str)], env_key: Option<&[OsString]>) -> String {
        let env = env(pairs);
        let names = variables::counted(variables::VariableInput {
            env: &env,
            env_key,
            known: None,
            cwd_given: false,
            ecosystem: None,
        });
        of(
            &KeyInput {
                command: &words(command),
                cwd: Path::new("/"),
                env: &env,
                names: &names,
                env_key,
                cache: true,
            },
            None,
        )
    }

    #[test]
    fn the_key_does_not_depend_on_the_order_of_variables() {
        let key = hex(
            &["cat"],
            &[("A", "1"), ("B", "2"), ("PATH", "/usr/bin:/bin")],
        );
        assert_eq!(key.len(), DIGITS);
        assert_eq!(
            key,
            hex(
                &["cat"],
                &[("PATH", "/usr/bin:/bin"), ("B", "2"), ("A", "1")]
            )
        );
    }

    #[test]
    fn variables_that_differ_between_terminals_do_not_count() {
        let key = hex(&["cat"], &[("A", "1")]);
        for name in [
            "PWD",
            "TERM",
            "TERM_PROGRAM",
            "SSH_AUTH_SOCK",
            "npm_x",
            "KENNEL_SWEEP",
        ] {
            assert_eq!(key, hex(&["cat"], &[("A", "1"), (name, "x")]), "{name}");
        }
        assert_ne!(key, hex(&["cat"], &[("A", "1"), ("API_KEY", "x")]));
    }

    #[test]
    fn of_a_path_that_is_set_twice_the_last_one_finds_the_program_as_it_does_for_the_server() {
        let cat = |paths: &[&str]| {
            let env = paths.iter().map(|path| ("PATH".into(), path.into()));
            program(&KeyInput {
                command: &words(&["cat"]),
                cwd: Path::new("/"),
                env: &env.collect::<Vec<_>>(),
                names: &[],
                env_key: None,
                cache: true,
            })
        };
        let there = cat(&["/usr/bin:/bin"]);
        assert!(there.is_absolute());
        assert_eq!(cat(&["/none", "/usr/bin:/bin"]), there);
        assert_eq!(cat(&["/usr/bin:/bin", "/none"]), Path::new("cat"));
    }

    #[test]
    fn nothing_collides_by_running_together() {
        let keys = [
            hex(&["cat", "ab", "c"], &[]),
            hex(&["cat", "a", "bc"], &[]),
            hex(&["cat", "a", "b", "c"], &[]),
            hex(&["cat"], &[("A", "B")]),
            hex(&["cat"], &[("AB", "")]),
            hex(&["cat", "A", "B"], &[]),
        ];
        for (at, key) in keys.iter().enumerate() {
            assert!(!keys[..at].contains(key), "{at}");
        }
    }

    #[test]
    fn only_the_variables_of_env_key_count_if_it_is_given() {
        let named = words(&["MINE"]);
        let key = |value, mine| key(&["cat"], &[("OTHER", value), ("MINE", mine)], Some(&named));
        assert_eq!(key("1", "t"), key("2", "t"));
        assert_ne!(key("1", "t"), key("1", "u"));
    }

    #[test]
    fn variables_that_a_known_server_reads_count_in_addition_to_env_key() {
        let named = words(&["DEBUG"]);
        let of = |command: &[&str], value| {
            of(
                &KeyInput {
                    command: &words(command),
                    cwd: Path::new("/"),
                    env: &env(&[("DEBUG", "1"), ("BASE_URL", value)]),
                    // A session that leaves it out of the names cannot make it not count.
                    names: &named,
                    env_key: Some(&named),
                    cache: true,
                },
                None,
            )
        };
        let known = ["npx", "-y", "@notionhq/notion-mcp-server"];
        assert_ne!(of(&known, "/1"), of(&known, "/2"));
        let unknown = ["npx", "-y", "@x/notion-mcp-server"];
        assert_eq!(of(&unknown, "/1"), of(&unknown, "/2"));
    }

    #[test]
    fn names_in_env_key_count_even_if_they_are_not_set() {
        let key = |names: &[&str]| key(&["cat"], &[("C", "1")], Some(&words(names)));
        assert_ne!(key(&["A"]), key(&["B"]));
        assert_ne!(key(&["A"]), key(&["A", "B"]));
        assert_eq!(key(&["A", "B"]), key(&["B", "A", "B"]));
        // A session without names compares all variables.
        assert_ne!(key(&["C"]), hex(&["cat"], &[("C", "1")]));
    }

    #[test]
    fn credentials_count_with_any_env_key() {
        // A session that leaves them out of the names cannot make them not count.
        let key = |name, value| {
            of(
                &KeyInput {
                    command: &words(&["cat"]),
                    cwd: Path::new("/"),
                    env: &env(&[("LOG", "1"), (name, value)]),
                    names: &words(&["LOG"]),
                    env_key: None,
                    cache: true,
                },
                None,
            )
        };
        let counts = |name| key(name, "1") != key(name, "2");
        for name in [
            "TOKEN",
            "GITHUB_TOKEN",
            "OPENAI_API_KEY",
            "GITHUB_PAT",
            "db_password",
        ] {
            assert!(counts(name), "{name}");
        }
        for name in ["EDITOR", "KEYBOARD", "GIT_AUTHOR_NAME", "PATH"] {
            assert!(!counts(name), "{name}");
        }
    }

    /// Whether two values of a variable give two keys: with `--env-key`, and without.
    fn counts(name: &str, values: [&str; 2]) -> (bool, bool) {
        let named = words(&["LOG"]);
        let key = |value, env_key| key(&["cat"], &[("HOME", "/home/u"), (name, value)], env_key);
        let differ = |env_key| key(values[0], env_key) != key(values[1], env_key);
        (differ(Some(&named[..])), differ(None))
    }

    #[test]
    fn credentials_count_though_their_name_is_on_the_volatile_list() {
        for name in [
            "CLAUDE_CODE_OAUTH_TOKEN",
            "CURSOR_API_KEY",
            "npm_config__authToken",
            "npm_config_//registry.example/:_authToken",
            "npm_config__auth",
            "npm_config__password",
            "KENNEL_X_SECRET",
        ] {
            assert!(variables::matches(VOLATILE, name.as_bytes()), "{name}");
            assert_eq!(counts(name, ["1", "2"]), (true, true), "{name}");
        }
    }

    #[test]
    fn names_that_only_look_like_a_credential_do_not_count() {
        for name in NO_CREDENTIAL {
            assert!(
                variables::matches(VOLATILE, name.as_bytes()),
                "{name} needs no exception"
            );
            assert_eq!(counts(name, ["1", "2"]), (false, false), "{name}");
        }
    }

    #[test]
    fn a_registry_counts_for_the_key() {
        let more = [
            "npm_config_registry",
            "npm_config_@acme:registry",
            "NPM_CONFIG_REGISTRY",
            "BUN_CONFIG_REGISTRY",
            "YARN_NPM_REGISTRY_SERVER",
            "COREPACK_NPM_REGISTRY",
            "npm_config_userconfig",
        ];
        for name in REGISTRY.iter().chain(&more) {
            assert_eq!(counts(name, ["/1", "/2"]), (true, true), "{name}");
        }
    }

    #[test]
    fn configuration_files_that_npm_names_by_itself_do_not_count() {
        for (name, own) in [
            ("npm_config_userconfig", "/home/u/.npmrc"),
            ("npm_config_globalconfig", "/opt/node/etc/npmrc"),
        ] {
            let key = |pairs: &[(&str, &str)]| hex(&["cat"], pairs);
            let home = ("HOME", "/home/u");
            assert_eq!(key(&[home]), key(&[home, (name, own)]), "{name}");
            assert_ne!(key(&[home]), key(&[home, (name, "/other")]), "{name}");
        }
        // A file that exists counts, unless it belongs to the node installation that runs npm.
        let scope = kennel_testkit::Scope::new("npmrc");
        std::fs::create_dir(scope.path("etc")).unwrap();
        std::fs::write(scope.path("etc/npmrc"), "").unwrap();
        let (file, node) = (scope.path("etc/npmrc"), scope.path("bin/node"));
        let global = ("npm_config_globalconfig", file.to_str().unwrap());
        let node = ("npm_node_execpath", node.to_str().unwrap());
        assert_ne!(hex(&["cat"], &[]), hex(&["cat"], &[global]));
        assert_eq!(hex(&["cat"], &[node]), hex(&["cat"], &[node, global]));
    }

    #[test]
    fn the_python_of_a_virtual_environment_is_another_program() {
        let scope = kennel_testkit::Scope::new("venv");
        let python = scope.path("python3");
        std::fs::write(&python, "").unwrap();
        std::fs::set_permissions(&python, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        let key = |dir: &str, is_environment: bool| {
            let bin = scope.path(dir).join("bin");
            std::fs::create_dir_all(&bin).unwrap();
            std::os::unix::fs::symlink(&python, bin.join("python3")).unwrap();
            if is_environment {
                std::fs::write(scope.path(dir).join("pyvenv.cfg"), "").unwrap();
            }
            of(
                &KeyInput {
                    command: &words(&["python3", "-m", "x"]),
                    cwd: Path::new("/"),
                    env: &env(&[("PATH", bin.to_str().unwrap())]),
                    names: &[],
                    env_key: None,
                    cache: true,
                },
                None,
            )
        };
        assert_ne!(key("one", true), key("two", true));
        assert_eq!(key("a", false), key("b", false), "two names of one program");
    }

    #[test]
    fn another_user_or_another_confinement_is_another_key() {
        let (command, env) = (words(&["cat"]), env(&[]));
        let what = KeyInput {
            command: &command,
            cwd: Path::new("/"),
            env: &env,
            names: &[],
            env_key: None,
            cache: true,
        };
        let (free, confined) = (["mnt 1".to_owned()], ["mnt 2".to_owned()]);
        assert_ne!(digest(&what, 1, &free), digest(&what, 2, &free));
        assert_ne!(digest(&what, 1, &free), digest(&what, 1, &confined));
        let ours = Confinement::of_this_process().unwrap();
        assert_eq!(of(&what, Some(&ours)), of(&what, Some(&ours)));
        assert_ne!(of(&what, Some(&ours)), of(&what, None));
    }

    #[test]
    fn a_daemon_computes_the_key_that_its_client_computed() {
        let text = |bytes: &[u8]| Text::from(bytes);
        let ours = Confinement::of_this_process().unwrap();
        for (names, env_key, cache) in [
            (&["A", "B"][..], None, true),
            (&["A"], Some(words(&["A", "C"])), true),
            (&[], None, false),
        ] {
            let names = words(names);
            let key = of(
                &KeyInput {
                    command: &words(&["cat", "-u"]),
                    cwd: Path::new("/tmp"),
                    env: &env(&[("PATH", "/usr/bin:/bin"), ("A", "1"), ("B", "2")]),
                    names: &names,
                    env_key: env_key.as_deref(),
                    cache,
                },
                Some(&ours),
            );
            let hello = r#"!hello {"version":"0","protocol":1,"pid":1,"identity":"","session":"s","spec":{"command":["cat","-u"],"cwd":"/tmp","ladder":[1,1]},"env":[["B","2"],["A","1"],["PATH","/usr/bin:/bin"]]}"#;
            let mut hello = ClientHello::parse(hello.as_bytes()).unwrap().unwrap();
            assert_eq!(of_hello(&hello, &ours), None, "an older hello");
            let names = names
                .iter()
                .map(|name| text(name.as_encoded_bytes()))
                .collect();
            let fields = KeyFields {
                version: VERSION,
                names,
                env_key: env_key.map(|names| {
                    let names = names.iter();
                    names.map(|name| text(name.as_encoded_bytes())).collect()
                }),
                no_cache: !cache,
            };
            hello.key = Some(fields.clone());
            let hash = hash_of_hello(&hello, &ours).unwrap();
            assert!(hash.starts_with(&key) && hash.len() == 64, "{hash}");
            assert_eq!(of_hello(&hello, &ours), Some(key));
            hello.key = Some(KeyFields {
                version: VERSION + 1,
                ..fields
            });
            assert_eq!(of_hello(&hello, &ours), None, "a later hello");
        }
    }
}
