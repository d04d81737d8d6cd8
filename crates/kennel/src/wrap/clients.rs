//! The apps people use, and where each keeps its servers.

use std::path::{Path, PathBuf};

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
    /// Below the base; a last part of `*.ext` stands for all such files.
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
        let has_root = |word: &str| text.lines().any(|line| line.starts_with(word));
        match path.extension()?.to_str()? {
            "json" | "jsonc" => Some(Shape::AnyJson),
            "toml" => Some(Shape::Toml),
            "yaml" | "yml" if has_root("extensions:") => Some(Shape::Yaml(yaml::Kind::Extensions)),
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

/// A configuration that is there.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) client: Option<&'static Client>,
    pub(crate) path: PathBuf,
    /// `None` if only its content can tell.
    pub(crate) shape: Option<Shape>,
    /// Whether it is one project's.
    pub(crate) project: bool,
}

/// Where paths begin for the one who asks.
#[derive(Debug, Clone)]
pub(crate) struct Bases {
    pub(crate) system: System,
    pub(crate) home: PathBuf,
    pub(crate) project: PathBuf,
    pub(crate) variable: fn(&str) -> Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "one of them runs this; a test looks at all")
)]
pub(crate) enum System {
    Linux,
    MacOs,
    Windows,
}

impl Bases {
    pub(crate) fn of_user() -> Option<Bases> {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        Some(Bases {
            system: System::Linux,
            home: home.filter(|home| home.is_absolute())?,
            project: std::env::current_dir().ok()?,
            variable: |name| {
                let path = std::env::var_os(name).map(PathBuf::from);
                path.filter(|path| path.is_absolute())
            },
        })
    }

    fn config(&self) -> PathBuf {
        let named = (self.variable)("XDG_CONFIG_HOME");
        named.unwrap_or_else(|| self.home.join(".config"))
    }

    fn app_data(&self) -> PathBuf {
        match self.system {
            System::Linux => self.config(),
            System::MacOs => self.home.join("Library/Application Support"),
            System::Windows => {
                (self.variable)("APPDATA").unwrap_or_else(|| self.home.join("AppData/Roaming"))
            }
        }
    }

    fn path(&self, place: &Place) -> Option<PathBuf> {
        let base = match place.base {
            Base::Home => self.home.clone(),
            Base::Config => self.config(),
            Base::AppData => self.app_data(),
            Base::ConfigOrAppData if self.system == System::Windows => self.app_data(),
            Base::ConfigOrAppData => self.config(),
            Base::Variable(name, otherwise) => {
                (self.variable)(name).unwrap_or_else(|| self.home.join(otherwise))
            }
            Base::FileOf(name) => return (self.variable)(name),
            Base::Project => self.project.clone(),
        };
        Some(base.join(place.path))
    }

    /// The configurations that are there, of all clients or of those named. None is there twice.
    pub(crate) fn find(&self, named: &[String]) -> Vec<Found> {
        let mut found: Vec<Found> = Vec::new();
        let chosen = |client: &&Client| named.is_empty() || named.iter().any(|id| id == client.id);
        for client in CLIENTS.iter().filter(chosen) {
            for place in client.files {
                for path in self
                    .path(place)
                    .map(|path| matching(&path))
                    .unwrap_or_default()
                {
                    if found.iter().any(|other| other.path == path) {
                        continue;
                    }
                    found.push(Found {
                        client: Some(client),
                        path,
                        shape: Some(place.shape),
                        project: place.base == Base::Project,
                    });
                }
            }
        }
        found
    }
}

/// The regular files a path stands for.
fn matching(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let Some(ending) = name.strip_prefix('*') else {
        return if path.is_file() {
            vec![path.to_owned()]
        } else {
            Vec::new()
        };
    };
    let entries = path.parent().and_then(|dir| std::fs::read_dir(dir).ok());
    let mut files: Vec<PathBuf> = entries
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|file| file.is_file() && file.to_string_lossy().ends_with(ending))
        .collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_has_its_files_on_every_system() {
        for (system, desktop) in [
            (
                System::Linux,
                "/home/a/.config/Claude/claude_desktop_config.json",
            ),
            (
                System::MacOs,
                "/home/a/Library/Application Support/Claude/claude_desktop_config.json",
            ),
            (
                System::Windows,
                "/home/a/AppData/Roaming/Claude/claude_desktop_config.json",
            ),
        ] {
            let bases = Bases {
                system,
                home: "/home/a".into(),
                project: "/work".into(),
                variable: |_| None,
            };
            let paths = |client: &Client| -> Vec<PathBuf> {
                client
                    .files
                    .iter()
                    .filter_map(|place| bases.path(place))
                    .collect()
            };
            let of = |id| paths(CLIENTS.iter().find(|client| client.id == id).unwrap());
            assert_eq!(of("claude-desktop"), [PathBuf::from(desktop)]);
            assert_eq!(of("claude-code")[0], Path::new("/home/a/.claude.json"));
            assert_eq!(of("codex")[0], Path::new("/home/a/.codex/config.toml"));
            assert!(CLIENTS.iter().all(|client| !paths(client).is_empty()));
        }
    }

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
