//! `--share auto`: whether a session may share its server, decided before anything is started.
//!
//! Asked in this order: what the person wrote down ([`servers_toml`]), what is known about the servers
//! people use ([`table`]), and whether an earlier session met the stateless protocol ([`eras`]). A server
//! nobody vouches for gets a session of its own: sharing may be missed, but never be wrong.

pub(crate) mod eras;
pub(crate) mod launcher;
pub(crate) mod servers_toml;
pub(crate) mod table;

use std::ffi::OsString;

pub(crate) use eras::Remembered;
pub(crate) use servers_toml::{Named, ServersToml};

/// What a session is about to start, and what is known of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish<'a> {
    /// Program and arguments.
    pub(crate) command: &'a [OsString],
    /// What the person wrote down.
    pub(crate) config: &'a ServersToml,
    /// What earlier sessions of the same key met.
    pub(crate) remembered: Remembered,
}

/// What `auto` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decision {
    /// A session that begins with `initialize`: protocol 2025-11-25 and earlier.
    pub(crate) legacy: Fate,
    /// A session of protocol 2026-07-28 and later, where every request stands for itself.
    pub(crate) modern: Fate,
    /// Whether lists may be answered from memory.
    pub(crate) cache: bool,
    /// Whether calls of tools take turns.
    pub(crate) in_turn: bool,
    /// Why, in a few words for `kennel ps`.
    pub(crate) why: String,
}

/// What becomes of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It shares a server, through the daemon of its key.
    Shared,
    /// It has a server of its own.
    Solo,
}

/// Who may share a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Every session.
    Always,
    /// Every session, but one call at a time: what it does at once it mixes up.
    InTurn,
    /// Sessions of the stateless protocol only.
    Modern,
    /// None.
    Never,
}

const AS_ASKED: &str = "--share says so";
const AS_WRITTEN: &str = "servers.toml says so";
const STATELESS: &str = "speaks the stateless protocol: its modern sessions share";
const NOT_KNOWN: &str = "not known: a session of its own";

/// Whether the sessions of this command may share a server.
pub(crate) fn decide(what: &Wish<'_>) -> Decision {
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
        let why = entry.why.as_deref().unwrap_or(AS_WRITTEN);
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
            Some(false) | None => (Rule::Never, NOT_KNOWN),
        });
    Decision {
        cache: entry.is_none_or(|entry| entry.cache),
        ..Decision::by(rule, why)
    }
}

impl Decision {
    /// What somebody asked for on the command line.
    pub(crate) fn asked_for(rule: Rule) -> Decision {
        Decision::by(rule, AS_ASKED)
    }

    fn by(rule: Rule, why: &str) -> Decision {
        let fate = |shared| if shared { Fate::Shared } else { Fate::Solo };
        Decision {
            legacy: fate(matches!(rule, Rule::Always | Rule::InTurn)),
            modern: fate(rule != Rule::Never),
            cache: true,
            in_turn: rule == Rule::InTurn,
            why: why.to_owned(),
        }
    }

    /// The same, but no session shares.
    pub(crate) fn dedicated_because(self, why: String) -> Decision {
        Decision {
            legacy: Fate::Solo,
            modern: Fate::Solo,
            why,
            ..self
        }
    }

    /// Whether any session of this command would need a daemon.
    pub(crate) fn may_share(&self) -> bool {
        [self.legacy, self.modern].contains(&Fate::Shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(command: &str, config: &str, modern: Option<bool>) -> Decision {
        let command: Vec<OsString> = command.split(' ').map(OsString::from).collect();
        let (config, complaints) = ServersToml::parse(config, None);
        assert_eq!(complaints, Vec::new());
        decide(&Wish {
            command: &command,
            config: &config,
            remembered: Remembered { modern },
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
    fn who_shares_is_decided_by_the_file_then_the_table_then_the_remembered_era() {
        use Fate::{Shared, Solo};
        let (always, never, modern) = (written("always"), written("never"), written("modern"));
        for (command, config, era, fates, why) in [
            // The table: whatever was remembered.
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
            // Unknown: the era alone counts, and a legacy session never shares.
            (UNKNOWN, "", None, (Solo, Solo), NOT_KNOWN),
            (UNKNOWN, "", Some(false), (Solo, Solo), NOT_KNOWN),
            (UNKNOWN, "", Some(true), (Solo, Shared), STATELESS),
            // What the person wrote wins over both.
            (MEMORY, &never, Some(true), (Solo, Solo), AS_WRITTEN),
            (BROWSER, &always, None, (Shared, Shared), AS_WRITTEN),
            (UNKNOWN, &always, None, (Shared, Shared), AS_WRITTEN),
            (UNKNOWN, &never, Some(true), (Solo, Solo), AS_WRITTEN),
            (MEMORY, &modern, None, (Solo, Shared), AS_WRITTEN),
            (UNKNOWN, &modern, None, (Solo, Shared), AS_WRITTEN),
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
    fn the_words_of_the_file_reach_ps() {
        let config =
            "[[server]]\nmatch = \"@acme/thing\"\nshare = \"never\"\nwhy = \"keeps a REPL\"";
        assert_eq!(decision(UNKNOWN, config, None).why, "keeps a REPL");
    }

    #[test]
    fn a_server_without_cache_shares_as_before() {
        let config = "[[server]]\nmatch = \"@modelcontextprotocol/server-memory\"\ncache = false";
        let uncached = decision(MEMORY, config, None);
        assert!(!uncached.cache);
        assert_eq!(uncached.legacy, Fate::Shared);
        assert!(decision(MEMORY, "", None).cache);
        assert!(decision(UNKNOWN, "", None).cache);
    }

    #[test]
    fn a_command_nobody_can_read_goes_solo_whatever_it_mentions() {
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
    fn the_era_is_remembered_even_of_a_command_nobody_can_read() {
        let decision = decision("docker run -i acme/thing", "", Some(true));
        assert_eq!(
            (decision.legacy, decision.modern),
            (Fate::Solo, Fate::Shared)
        );
    }
}
