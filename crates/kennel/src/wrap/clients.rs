//! Well-known apps, and the files in which they configure servers.

use std::path::Path;

use super::entry::{Entry, Unreadable};
use super::shapes::{self, Root};
use super::{toml, yaml};

/// An app.
#[derive(Debug)]
pub(crate) struct Client {
    /// Its name for `--client`.
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) files: &'static [ConfigPath],
    /// Whether it expands variables in a command's arguments as it does in the command.
    pub(crate) expands_args: bool,
    /// The program that overwrites the file while it runs, if one does.
    pub(crate) rewrites: Option<&'static str>,
}

/// A file that may exist.
#[derive(Debug)]
pub(crate) struct ConfigPath {
    pub(crate) base: Base,
    /// The path below the base; a part that begins with `*` matches all names with this ending.
    pub(crate) path: &'static str,
    pub(crate) shape: Shape,
}

/// The beginning of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base {
    Home,
    /// `$XDG_CONFIG_HOME`, `~/.config`.
    Config,
    /// The directory of desktop apps' data, which differs between systems.
    AppData,
    /// `~/.config` on Linux and macOS; on Windows the directory of desktop apps' data.
    ConfigOrAppData,
    /// The directory in a variable, else one below home.
    Variable(&'static str, &'static str),
    /// The file in a variable.
    FileInVariable(&'static str),
    /// The working directory.
    Project,
}

/// The byte order mark.
const MARK: char = '\u{feff}';

/// Maximum number of servers in one file. Every one takes time: for its line, its rule and its record.
const MAX_SERVERS: usize = 10_000;

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Json(Root),
    Toml,
    Yaml(yaml::Kind),
    /// JSON with any of the known members.
    AnyJson,
}

impl Shape {
    /// The servers in a file of this format.
    pub(crate) fn entries(self, text: &str) -> Result<Vec<Entry>, Unreadable> {
        // A byte order mark is not part of the document. Spaces of its length keep all positions the same.
        if let Some(body) = text.strip_prefix(MARK)
            && !matches!(self, Shape::Yaml(_))
        {
            let entries = self.entries(&(" ".repeat(MARK.len_utf8()) + body));
            return entries.map_err(|mut error| {
                error.column -= usize::from(error.line == 1) * (MARK.len_utf8() - 1);
                error
            });
        }
        let entries = match self {
            Shape::Json(root) => shapes::entries(text, &[root]),
            Shape::AnyJson => shapes::entries(text, shapes::ROOTS),
            Shape::Toml => toml::entries(text),
            Shape::Yaml(kind) => yaml::entries(text, kind),
        }?;
        match entries.get(MAX_SERVERS) {
            None => Ok(entries),
            Some(entry) => {
                let what = format!("more than {MAX_SERVERS} servers: too many for a configuration");
                Err(Unreadable::at(text, entry.at, what))
            }
        }
    }

    /// The format by the file's name, and for YAML by its content.
    pub(crate) fn of_file(path: &Path, text: &str) -> Option<Shape> {
        let text = text.trim_start_matches(MARK);
        let has_extensions = text.lines().any(|line| {
            let key = line.split_once(':').map(|(key, _)| key.trim_end());
            matches!(key, Some("extensions" | "\"extensions\"" | "'extensions'"))
        });
        match path.extension()?.to_str()? {
            "json" | "jsonc" => Some(Shape::AnyJson),
            "toml" => Some(Shape::Toml),
            "yaml" | "yml" if has_extensions => Some(Shape::Yaml(yaml::Kind::Extensions)),
            "yaml" | "yml" => Some(Shape::Yaml(yaml::Kind::McpServers)),
            _ => None,
        }
    }
}

const fn config_path(base: Base, path: &'static str, shape: Shape) -> ConfigPath {
    ConfigPath { base, path, shape }
}

const MCP_SERVERS: Shape = Shape::Json(Root::McpServers);
const SERVERS: Shape = Shape::Json(Root::Servers);
const OPENCODE: Shape = Shape::Json(Root::Mcp);
const CONTINUE: Shape = Shape::Yaml(yaml::Kind::McpServers);

/// All known apps. `docs/CLIENTS.md` shows them; a test compares both.
pub(crate) static CLIENTS: &[Client] = &[
    Client {
        id: "claude-code",
        title: "Claude Code",
        files: &[
            config_path(
                Base::Variable("CLAUDE_CONFIG_DIR", ""),
                ".claude.json",
                MCP_SERVERS,
            ),
            config_path(Base::Project, ".mcp.json", MCP_SERVERS),
        ],
        expands_args: true,
        rewrites: Some("claude"),
    },
    Client {
        id: "claude-desktop",
        title: "Claude Desktop",
        files: &[config_path(
            Base::AppData,
            "Claude/claude_desktop_config.json",
            MCP_SERVERS,
        )],
        expands_args: false,
        rewrites: None,
    },
    Client {
        id: "cursor",
        title: "Cursor",
        files: &[
            config_path(Base::Home, ".cursor/mcp.json", MCP_SERVERS),
            config_path(Base::Project, ".cursor/mcp.json", MCP_SERVERS),
        ],
        expands_args: true,
        rewrites: None,
    },
    Client {
        id: "vscode",
        title: "VS Code",
        files: &[
            config_path(Base::AppData, "Code/User/mcp.json", SERVERS),
            config_path(Base::AppData, "Code/User/profiles/*/mcp.json", SERVERS),
            config_path(Base::AppData, "Code - Insiders/User/mcp.json", SERVERS),
            config_path(Base::Home, ".copilot/mcp-config.json", MCP_SERVERS),
            config_path(Base::Project, ".vscode/mcp.json", SERVERS),
        ],
        expands_args: true,
        rewrites: None,
    },
    Client {
        id: "codex",
        title: "Codex",
        files: &[
            config_path(
                Base::Variable("CODEX_HOME", ".codex"),
                "config.toml",
                Shape::Toml,
            ),
            config_path(Base::Project, ".codex/config.toml", Shape::Toml),
        ],
        expands_args: false,
        rewrites: None,
    },
    Client {
        id: "gemini",
        title: "Gemini CLI",
        files: &[
            config_path(Base::Home, ".gemini/settings.json", MCP_SERVERS),
            config_path(Base::Project, ".gemini/settings.json", MCP_SERVERS),
        ],
        expands_args: true,
        rewrites: None,
    },
    Client {
        id: "windsurf",
        title: "Windsurf",
        files: &[config_path(
            Base::Home,
            ".codeium/windsurf/mcp_config.json",
            MCP_SERVERS,
        )],
        expands_args: true,
        rewrites: None,
    },
    Client {
        id: "opencode",
        title: "opencode",
        files: &[
            config_path(Base::Config, "opencode/opencode.json", OPENCODE),
            config_path(Base::Config, "opencode/opencode.jsonc", OPENCODE),
            config_path(Base::FileInVariable("OPENCODE_CONFIG"), "", OPENCODE),
            config_path(Base::Project, "opencode.json", OPENCODE),
            config_path(Base::Project, "opencode.jsonc", OPENCODE),
            config_path(Base::Project, ".opencode/opencode.json", OPENCODE),
            config_path(Base::Project, ".opencode/opencode.jsonc", OPENCODE),
        ],
        expands_args: true,
        rewrites: None,
    },
    Client {
        id: "zed",
        title: "Zed",
        files: &[
            config_path(
                Base::ConfigOrAppData,
                "zed/settings.json",
                Shape::Json(Root::ContextServers),
            ),
            config_path(
                Base::Project,
                ".zed/settings.json",
                Shape::Json(Root::ContextServers),
            ),
        ],
        expands_args: false,
        rewrites: None,
    },
    Client {
        id: "cline",
        title: "Cline",
        files: &[
            config_path(
                Base::Home,
                ".cline/data/settings/cline_mcp_settings.json",
                MCP_SERVERS,
            ),
            config_path(
                Base::AppData,
                "Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
                MCP_SERVERS,
            ),
        ],
        expands_args: false,
        rewrites: None,
    },
    Client {
        id: "continue",
        title: "Continue",
        files: &[
            config_path(Base::Home, ".continue/config.yaml", CONTINUE),
            config_path(Base::Home, ".continue/mcpServers/*.yaml", CONTINUE),
            config_path(Base::Home, ".continue/mcpServers/*.json", MCP_SERVERS),
            config_path(Base::Project, ".continue/mcpServers/*.yaml", CONTINUE),
            config_path(Base::Project, ".continue/mcpServers/*.json", MCP_SERVERS),
        ],
        expands_args: false,
        rewrites: None,
    },
    Client {
        id: "goose",
        title: "Goose",
        files: &[config_path(
            Base::ConfigOrAppData,
            "goose/config.yaml",
            Shape::Yaml(yaml::Kind::Extensions),
        )],
        expands_args: false,
        rewrites: None,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_shows_every_client() {
        let text = include_str!("../../../../docs/CLIENTS.md");
        for client in CLIENTS {
            assert!(
                text.contains(client.title) && text.contains(client.id),
                "{}",
                client.id
            );
        }
    }
}
