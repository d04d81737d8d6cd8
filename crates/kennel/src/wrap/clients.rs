//! The apps people use, and where each keeps its servers.

use std::path::Path;

use super::entry::{Entry, Unreadable};
use super::shapes::{self, Root};
use super::{toml, yaml};

/// An app.
#[derive(Debug)]
pub(crate) struct Client {
    /// What `--client` calls it.
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) files: &'static [Place],
    /// Whether it fills in variables in a command's arguments as it does in the command.
    pub(crate) fills_in_args: bool,
    /// The program that writes over its file while it runs, if it does.
    pub(crate) rewrites: Option<&'static str>,
}

/// A file that may be there.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) base: Base,
    /// Below the base; a part that begins with `*` stands for all that end like it.
    pub(crate) path: &'static str,
    pub(crate) shape: Shape,
}

/// Where a path begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base {
    Home,
    /// `$XDG_CONFIG_HOME`, `~/.config`.
    Config,
    /// Where desktop apps keep theirs: another place on every system.
    AppData,
    /// `~/.config` on Linux and macOS; on Windows where desktop apps keep theirs.
    ConfigOrAppData,
    /// The directory a variable names, else one below home.
    Variable(&'static str, &'static str),
    /// The file itself that a variable names.
    FileOf(&'static str),
    /// The directory we are in.
    Project,
}

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Json(Root),
    Toml,
    Yaml(yaml::Kind),
    /// JSON with whatever of the known members it has.
    AnyJson,
}

impl Shape {
    /// The servers in a file of this shape.
    pub(crate) fn entries(self, text: &str) -> Result<Vec<Entry>, Unreadable> {
        match self {
            Shape::Json(root) => shapes::entries(text, &[root]),
            Shape::AnyJson => shapes::entries(text, shapes::ROOTS),
            Shape::Toml => toml::entries(text),
            Shape::Yaml(kind) => yaml::entries(text, kind),
        }
    }

    /// By its name, and for YAML by what is in it.
    pub(crate) fn of_file(path: &Path, text: &str) -> Option<Shape> {
        let text = text.trim_start_matches('\u{feff}');
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

const fn place(base: Base, path: &'static str, shape: Shape) -> Place {
    Place { base, path, shape }
}

const MCP_SERVERS: Shape = Shape::Json(Root::McpServers);
const SERVERS: Shape = Shape::Json(Root::Servers);
const OPENCODE: Shape = Shape::Json(Root::Mcp);
const CONTINUE: Shape = Shape::Yaml(yaml::Kind::McpServers);

/// Every app that is known. `docs/CLIENTS.md` shows them, and a test keeps it true.
pub(crate) static CLIENTS: &[Client] = &[
    Client {
        id: "claude-code",
        title: "Claude Code",
        files: &[
            place(
                Base::Variable("CLAUDE_CONFIG_DIR", ""),
                ".claude.json",
                MCP_SERVERS,
            ),
            place(Base::Project, ".mcp.json", MCP_SERVERS),
        ],
        fills_in_args: true,
        rewrites: Some("claude"),
    },
    Client {
        id: "claude-desktop",
        title: "Claude Desktop",
        files: &[place(
            Base::AppData,
            "Claude/claude_desktop_config.json",
            MCP_SERVERS,
        )],
        fills_in_args: false,
        rewrites: None,
    },
    Client {
        id: "cursor",
        title: "Cursor",
        files: &[
            place(Base::Home, ".cursor/mcp.json", MCP_SERVERS),
            place(Base::Project, ".cursor/mcp.json", MCP_SERVERS),
        ],
        fills_in_args: true,
        rewrites: None,
    },
    Client {
        id: "vscode",
        title: "VS Code",
        files: &[
            place(Base::AppData, "Code/User/mcp.json", SERVERS),
            place(Base::AppData, "Code/User/profiles/*/mcp.json", SERVERS),
            place(Base::AppData, "Code - Insiders/User/mcp.json", SERVERS),
            place(Base::Home, ".copilot/mcp-config.json", MCP_SERVERS),
            place(Base::Project, ".vscode/mcp.json", SERVERS),
        ],
        fills_in_args: true,
        rewrites: None,
    },
    Client {
        id: "codex",
        title: "Codex",
        files: &[
            place(
                Base::Variable("CODEX_HOME", ".codex"),
                "config.toml",
                Shape::Toml,
            ),
            place(Base::Project, ".codex/config.toml", Shape::Toml),
        ],
        fills_in_args: false,
        rewrites: None,
    },
    Client {
        id: "gemini",
        title: "Gemini CLI",
        files: &[
            place(Base::Home, ".gemini/settings.json", MCP_SERVERS),
            place(Base::Project, ".gemini/settings.json", MCP_SERVERS),
        ],
        fills_in_args: true,
        rewrites: None,
    },
    Client {
        id: "windsurf",
        title: "Windsurf",
        files: &[place(
            Base::Home,
            ".codeium/windsurf/mcp_config.json",
            MCP_SERVERS,
        )],
        fills_in_args: true,
        rewrites: None,
    },
    Client {
        id: "opencode",
        title: "opencode",
        files: &[
            place(Base::Config, "opencode/opencode.json", OPENCODE),
            place(Base::Config, "opencode/opencode.jsonc", OPENCODE),
            place(Base::FileOf("OPENCODE_CONFIG"), "", OPENCODE),
            place(Base::Project, "opencode.json", OPENCODE),
            place(Base::Project, "opencode.jsonc", OPENCODE),
            place(Base::Project, ".opencode/opencode.json", OPENCODE),
            place(Base::Project, ".opencode/opencode.jsonc", OPENCODE),
        ],
        fills_in_args: true,
        rewrites: None,
    },
    Client {
        id: "zed",
        title: "Zed",
        files: &[
            place(
                Base::ConfigOrAppData,
                "zed/settings.json",
                Shape::Json(Root::ContextServers),
            ),
            place(
                Base::Project,
                ".zed/settings.json",
                Shape::Json(Root::ContextServers),
            ),
        ],
        fills_in_args: false,
        rewrites: None,
    },
    Client {
        id: "cline",
        title: "Cline",
        files: &[
            place(
                Base::Home,
                ".cline/data/settings/cline_mcp_settings.json",
                MCP_SERVERS,
            ),
            place(
                Base::AppData,
                "Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
                MCP_SERVERS,
            ),
        ],
        fills_in_args: false,
        rewrites: None,
    },
    Client {
        id: "continue",
        title: "Continue",
        files: &[
            place(Base::Home, ".continue/config.yaml", CONTINUE),
            place(Base::Home, ".continue/mcpServers/*.yaml", CONTINUE),
            place(Base::Home, ".continue/mcpServers/*.json", MCP_SERVERS),
            place(Base::Project, ".continue/mcpServers/*.yaml", CONTINUE),
            place(Base::Project, ".continue/mcpServers/*.json", MCP_SERVERS),
        ],
        fills_in_args: false,
        rewrites: None,
    },
    Client {
        id: "goose",
        title: "Goose",
        files: &[place(
            Base::ConfigOrAppData,
            "goose/config.yaml",
            Shape::Yaml(yaml::Kind::Extensions),
        )],
        fills_in_args: false,
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
