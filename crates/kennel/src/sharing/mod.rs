//! `--share auto`: decides whether a session may share its server, before anything is started.
//!
//! The order: the entries of the user ([`servers_toml`]), the table of known servers ([`table`]), and whether an
//! earlier session used the stateless protocol ([`eras`]). A session with an unknown server is dedicated: a missed
//! chance to share is acceptable, wrong sharing is not.

pub(crate) mod eras;
pub(crate) mod launcher;
pub(crate) mod servers_toml;
pub(crate) mod table;

use std::ffi::OsString;

pub(crate) use eras::EraFindings;
pub(crate) use servers_toml::{Named, ServersToml};

/// The command that a session is about to start, and facts about it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SharingInput<'a> {
    /// Program and arguments.
    pub(crate) command: &'a [OsString],
    /// The user's entries.
    pub(crate) config: &'a ServersToml,
    /// Findings of earlier sessions with the same key.
    pub(crate) remembered: EraFindings,
}

/// The result of `auto`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decision {
    /// For a session that begins with `initialize`: protocol 2025-11-25 and earlier.
    pub(crate) legacy: Placement,
    /// For a session of protocol 2026-07-28 and later, where every request is complete.
    pub(crate) modern: Placement,
    /// Whether lists may be answered from the cache.
    pub(crate) cache: bool,
    /// Whether calls of tools run one at a time.
    pub(crate) in_turn: bool,
    /// The reason, in a few words for `kennel ps`.
    pub(crate) why: String,
}

/// Whether a session shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placement {
    /// It shares a server, through the daemon of its key.
    Shared,
    /// It has a dedicated server.
    Solo,
}

/// Selects the sessions that may share a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Every session.
    Always,
    /// Every session, but one call at a time: the server confuses concurrent calls.
    InTurn,
    /// Only sessions of the stateless protocol.
    Modern,
    /// None.
    Never,
}

const BY_FLAG: &str = "set by --share";
const BY_SERVERS_TOML: &str = "set in servers.toml";
const STATELESS: &str = "supports the stateless protocol: its modern sessions share";
const UNKNOWN_SERVER: &str = "unknown server: dedicated";

/// Whether the sessions of this command may share a server.
pub(crate) fn decide(what: &SharingInput<'_>) -> Decision {
    let words: Vec<_> = what
        .command
        .iter()
        .map(|word| word.to_string_lossy())
        .collect();
    let launched = launcher::launched(&words);
    let entry = launched
        .as_ref()
        .and_then(|launched| what.config.entry_for(launched));
    let written = entry.and_then(|entry| {
        let why = entry.why.as_deref().unwrap_or(BY_SERVERS_TOML);
        Some((entry.share?, why))
    });
    let known = || {
        let row = table::row_of(launched.as_ref()?)?;
        Some((row.rule, row.why))
    };
    let (rule, why) = written
        .or_else(known)
        .unwrap_or(match what.remembered.modern {
            Some(true) => (Rule::Modern, STATELESS),
            Some(false) | None => (Rule::Never, UNKNOWN_SERVER),
        });
    Decision {
        cache: entry.is_none_or(|entry| entry.cache),
        ..Decision::by(rule, why)
    }
}

impl Decision {
    /// The decision for a rule given on the command line.
    pub(crate) fn asked_for(rule: Rule) -> Decision {
        Decision::by(rule, BY_FLAG)
    }

    fn by(rule: Rule, why: &str) -> Decision {
        let fate = |shared| {
            if shared {
                Placement::Shared
            } else {
                Placement::Solo
            }
        };
        Decision {
            legacy: fate(matches!(rule, Rule::Always | Rule::InTurn)),
            modern: fate(rule != Rule::Never),
            cache: true,
            in_turn: rule == Rule::InTurn,
            why: why.to_owned(),
        }
    }

    /// The same decision, but no session shares.
    pub(crate) fn make_dedicated(self, why: String) -> Decision {
        Decision {
            legacy: Placement::Solo,
            modern: Placement::Solo,
            why,
            ..self
        }
    }

    /// Whether any session of this command would need a daemon.
    pub(crate) fn may_share(&self) -> bool {
        [self.legacy, self.modern].contains(&Placement::Shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(command: &str, config: &str, modern: Option<bool>) -> Decision {
        let command: Vec<OsString> = command.split(' ').map(OsString::from).collect();
        let (config, problems) = ServersToml::parse(config, None);
        assert_eq!(problems, Vec::new());
        decide(&SharingInput {
            command: &command,
            config: &config,
            remembered: EraFindings { modern },
        })
    }

    const MEMORY: &str = "npx -y @modelcontextprotocol/server-memory";
    const BROWSER: &str = "npx @playwright/mcp@latest";
    const UNKNOWN: &str = "npx -y @acme/thing";

    fn written(share: &str) -> String {
        [
            "@modelcontextprotocol/server-memory",
            "@playwright/mcp",
            "@acme/thing",
        ]
        .map(|name| format!("[[server]]\nmatch = \"{name}\"\nshare = \"{share}\"\n"))
        .concat()
    }

    #[test]
    fn the_file_then_the_table_then_the_era_decide_about_sharing() {
        use Placement::{Shared, Solo};
        let (always, never, modern) = (written("always"), written("never"), written("modern"));
        for (command, config, era, fates, why) in [
            // The table decides, whatever is remembered.
            (MEMORY, "", None, (Shared, Shared), "known to be safe"),
            (
                MEMORY,
                "",
                Some(false),
                (Shared, Shared),
                "known to be safe",
            ),
            (BROWSER, "", None, (Solo, Solo), "browser"),
            (BROWSER, "", Some(true), (Solo, Solo), "browser"),
            // Unknown: only the era counts, and a legacy session never shares.
            (UNKNOWN, "", None, (Solo, Solo), UNKNOWN_SERVER),
            (UNKNOWN, "", Some(false), (Solo, Solo), UNKNOWN_SERVER),
            (UNKNOWN, "", Some(true), (Solo, Shared), STATELESS),
            // The user's entry takes precedence over both.
            (MEMORY, &never, Some(true), (Solo, Solo), BY_SERVERS_TOML),
            (BROWSER, &always, None, (Shared, Shared), BY_SERVERS_TOML),
            (UNKNOWN, &always, None, (Shared, Shared), BY_SERVERS_TOML),
            (UNKNOWN, &never, Some(true), (Solo, Solo), BY_SERVERS_TOML),
            (MEMORY, &modern, None, (Solo, Shared), BY_SERVERS_TOML),
            (UNKNOWN, &modern, None, (Solo, Shared), BY_SERVERS_TOML),
        ] {
            let decision = decision(command, config, era);
            assert_eq!(
                (decision.legacy, decision.modern),
                fates,
                "{command} {era:?}"
            );
            assert!(decision.why.contains(why), "{command}: {}", decision.why);
            assert_eq!(decision.may_share(), fates != (Solo, Solo));
        }
    }

    #[test]
    fn the_reason_in_the_file_reaches_ps() {
        let config =
            "[[server]]\nmatch = \"@acme/thing\"\nshare = \"never\"\nwhy = \"keeps a REPL\"";
        assert_eq!(decision(UNKNOWN, config, None).why, "keeps a REPL");
    }

    #[test]
    fn a_server_without_cache_shares_as_before() {
        let config = "[[server]]\nmatch = \"@modelcontextprotocol/server-memory\"\ncache = false";
        let uncached = decision(MEMORY, config, None);
        assert!(!uncached.cache);
        assert_eq!(uncached.legacy, Placement::Shared);
        assert!(decision(MEMORY, "", None).cache);
        assert!(decision(UNKNOWN, "", None).cache);
    }

    #[test]
    fn an_unreadable_command_is_dedicated() {
        for command in [
            "docker run -i mcp/memory",
            "sh -c npx${IFS}@modelcontextprotocol/server-memory",
            "npx --some-new-option @modelcontextprotocol/server-memory",
            "echo @modelcontextprotocol/server-memory",
        ] {
            assert!(!decision(command, "", None).may_share(), "{command}");
        }
    }

    #[test]
    fn the_era_is_remembered_even_of_an_unreadable_command() {
        let decision = decision("docker run -i acme/thing", "", Some(true));
        assert_eq!(
            (decision.legacy, decision.modern),
            (Placement::Solo, Placement::Shared)
        );
    }
}
