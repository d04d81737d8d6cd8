//! Servers that do not care where they start, nor in which environment but for a few variables: so that
//! sessions of all apps and projects can share one.

use crate::sharing::launcher::Launched;
use crate::sharing::table;

/// A package, and the variables it reads.
const ROWS: &[(&str, &[&str])] = &[
    (
        "@modelcontextprotocol/server-github",
        &["GITHUB_PERSONAL_ACCESS_TOKEN"],
    ),
    (
        "@modelcontextprotocol/server-gitlab",
        &["GITLAB_PERSONAL_ACCESS_TOKEN", "GITLAB_API_URL"],
    ),
    (
        "@modelcontextprotocol/server-google-maps",
        &["GOOGLE_MAPS_API_KEY"],
    ),
    // A relative path is one beside the package.
    ("@modelcontextprotocol/server-memory", &["MEMORY_FILE_PATH"]),
    (
        "@modelcontextprotocol/server-slack",
        &["SLACK_BOT_TOKEN", "SLACK_TEAM_ID", "SLACK_CHANNEL_IDS"],
    ),
    (
        "mcp-server-fetch",
        &[
            "HTTP_PROXY",
            "HTTPS_PROXY",
            "ALL_PROXY",
            "NO_PROXY",
            "http_proxy",
            "https_proxy",
            "all_proxy",
            "no_proxy",
        ],
    ),
    ("mcp-server-time", &["TZ"]),
];

/// The variables that this server reads, if it is known to care for nothing else.
pub(crate) fn reads(launched: &Launched) -> Option<&'static [&'static str]> {
    let (_, package) = table::row_of(launched)?.package?;
    let row = ROWS.iter().find(|(name, _)| *name == package);
    row.map(|(_, variables)| *variables)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharing::Rule;

    #[test]
    fn only_servers_that_are_shared_are_moved() {
        for (package, _) in ROWS {
            let named = |row: &&table::Row| row.package.is_some_and(|(_, name)| name == *package);
            let row = table::ROWS.iter().find(named).expect(package);
            assert!(matches!(row.rule, Rule::Always | Rule::InTurn), "{package}");
        }
    }
}
