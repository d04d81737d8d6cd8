//! Servers that do not depend on their directory, so that the sessions of all projects can share one.

use crate::names::Names;
use crate::sharing::table::Row;

/// Their packages. None of them reads a file relative to the working directory, not even `.env`; for `server-memory`, a
/// relative path is relative to the package.
const PACKAGES: Names = Names(
    "@antv/mcp-server-chart @kimtaeyoon83/mcp-server-youtube-transcript \
     @modelcontextprotocol/server-aws-kb-retrieval @modelcontextprotocol/server-github \
     @modelcontextprotocol/server-gitlab @modelcontextprotocol/server-google-maps \
     @modelcontextprotocol/server-memory @modelcontextprotocol/server-redis @modelcontextprotocol/server-slack \
     airtable-mcp-server mcp-server-fetch mcp-server-time",
);

/// Whether a server may run in any directory.
pub(crate) fn fits(row: &Row) -> bool {
    row.package.is_some_and(|(_, name)| PACKAGES.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharing::{Rule, table};

    #[test]
    fn only_servers_that_are_shared_are_moved() {
        for package in PACKAGES.iter() {
            let named = |row: &&Row| row.package.is_some_and(|(_, name)| name == package);
            let row = table::ROWS.iter().find(named).expect(package);
            assert!(matches!(row.rule, Rule::Always | Rule::InTurn), "{package}");
        }
    }
}
