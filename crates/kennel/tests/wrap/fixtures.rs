//! A configuration of every app, with what people have in theirs: comments, trailing commas, variables to fill
//! in, servers that are reached over the network, keys that nobody knows. `@SERVER@` is a real one.

/// A configuration: whose, where, and what is in it.
pub(crate) struct Fixture {
    pub(crate) client: &'static str,
    pub(crate) path: &'static str,
    pub(crate) text: &'static str,
    /// How many servers in it start a process.
    pub(crate) servers: usize,
    /// Whether white space may be tabs.
    pub(crate) tabs: bool,
}

const fn json(
    client: &'static str,
    path: &'static str,
    servers: usize,
    text: &'static str,
) -> Fixture {
    Fixture {
        client,
        path,
        text,
        servers,
        tabs: true,
    }
}

const fn yaml(
    client: &'static str,
    path: &'static str,
    servers: usize,
    text: &'static str,
) -> Fixture {
    Fixture {
        client,
        path,
        text,
        servers,
        tabs: false,
    }
}

pub(crate) const FIXTURES: &[Fixture] = &[
    json(
        "claude-code",
        "home/.claude.json",
        3,
        r#"{
  "numStartups": 17,
  "mcpServers": {
    "used": {"type": "stdio", "command": "@SERVER@", "args": [], "env": {"TOKEN": "${TOKEN:-none}"}},
    "remote": {"type": "http", "url": "https://example.com/mcp", "headers": {"Authorization": "Bearer ${KEY}"}}
  },
  "projects": {
    "/home/a/work": {
      "allowedTools": [],
      "mcpServers": {
        "memory": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-memory"]},
        "local": {"command": "${HOME}/bin/server"}
      },
      "history": [{"display": "what is \"mcpServers\": {\"x\": 1}?"}]
    }
  },
  "oauth": null
}
"#,
    ),
    json(
        "claude-code",
        "project/.mcp.json",
        2,
        r#"{
  "mcpServers": {
    "used": {
      "command": "@SERVER@"
    },
    "docs": {
      "command": "uvx",
      "args": [
        "mcp-server-fetch"
      ],
      "env": {}
    }
  }
}"#,
    ),
    json(
        "claude-desktop",
        "home/.config/Claude/claude_desktop_config.json",
        2,
        r#"{
  "globalShortcut": "Ctrl+Space",
  "mcpServers": {
    "used": { "command": "@SERVER@", "args": [ ], "env": { "TOKEN": "t" } },
    "files": { "command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/a/Ordner \u00fc"] }
  }
}
"#,
    ),
    json(
        "cursor",
        "home/.cursor/mcp.json",
        2,
        r#"{
  // mine
  "mcpServers": {
    "used": {
      "command": "@SERVER@", // the one
      "env": { "TOKEN": "${env:TOKEN}" },
    },
    "github": {
      "args": ["-y", "@modelcontextprotocol/server-github",],
      "command": "npx",
      "env": { "GITHUB_PERSONAL_ACCESS_TOKEN": "ghp_secret" },
      "disabledTools": [],
    },
    "linear": { "url": "https://mcp.linear.app/sse" },
  },
}
"#,
    ),
    json(
        "cursor",
        "project/.cursor/mcp.json",
        1,
        r#"{"mcpServers":{"used":{"command":"@SERVER@","args":[]}}}"#,
    ),
    json(
        "vscode",
        "home/.config/Code/User/mcp.json",
        2,
        r#"{
  "inputs": [
    { "type": "promptString", "id": "key", "description": "API key", "password": true }
  ],
  "servers": {
    "used": {
      "type": "stdio",
      "command": "@SERVER@",
      "args": [/* none yet */],
      "envFile": "${workspaceFolder}/.env"
    },
    /* a block
       comment */
    "perplexity": {
      "type": "stdio",
      "command": "npx",
      "args": [
        "-y", // yes
        "@perplexity-ai/mcp-server"
      ],
      "env": { "PERPLEXITY_API_KEY": "${input:key}" }
    },
    "remote": { "type": "http", "url": "https://api.githubcopilot.com/mcp/" }
  }
}
"#,
    ),
    json(
        "vscode",
        "home/.config/Code/User/profiles/-1a2b3c/mcp.json",
        1,
        r#"{ "servers": { "used": { "command": "@SERVER@", "args": [] } } }"#,
    ),
    json(
        "vscode",
        "project/.vscode/mcp.json",
        1,
        r#"{
  "servers": {
    "used": { "command": "@SERVER@", "args": [], "dev": { "watch": "src/**" } },
  },
}
"#,
    ),
    json(
        "vscode",
        "home/.copilot/mcp-config.json",
        1,
        r#"{ "mcpServers": { "used": { "type": "local", "command": "@SERVER@", "args": [], "tools": ["*"] } } }
"#,
    ),
    json(
        "codex",
        "home/.codex/config.toml",
        4,
        r#"model = "gpt-5" # the default
[mcp_servers.used]
command = "@SERVER@"
args = []
startup_timeout_sec = 20

[mcp_servers.used.env]
TOKEN = "t"

[mcp_servers.memory]
command = 'npx' # a comment
args = [
  "-y",
  '@modelcontextprotocol/server-memory', # the package
]
env_vars = ["MEMORY_FILE_PATH"]

[mcp_servers."with cwd"]
command = "uvx"
cwd = "/srv"

[mcp_servers.remote]
url = "https://example.com/mcp"
bearer_token_env_var = "KEY"

[mcp_servers]
inline = { command = "thing", unknown = 1 }

[unknown]
command = "not a server"
"#,
    ),
    json(
        "codex",
        "project/.codex/config.toml",
        1,
        "mcp_servers.used = { command = \"@SERVER@\", args = [] }",
    ),
    json(
        "gemini",
        "home/.gemini/settings.json",
        2,
        r#"{
  "theme": "GitHub",
  "mcpServers": {
    "used": { "command": "@SERVER@", "cwd": "/tmp", "timeout": 600000, "trust": false, "env": { "TOKEN": "$TOKEN" } },
    "python": { "command": "python3", "args": ["-m", "server", "--port", "8080"] },
    "http": { "httpUrl": "http://localhost:3000/mcp" }
  }
}
"#,
    ),
    json(
        "gemini",
        "project/.gemini/settings.json",
        1,
        r#"{ "mcpServers": { "used": { "args": [], "command": "@SERVER@" } } }"#,
    ),
    json(
        "windsurf",
        "home/.codeium/windsurf/mcp_config.json",
        1,
        r#"{
  "mcpServers": {
    "used": { "command": "@SERVER@", "args": [], "disabled": false },
    "figma": { "serverUrl": "https://figma.example.com/mcp" }
  }
}
"#,
    ),
    json(
        "opencode",
        "home/.config/opencode/opencode.jsonc",
        2,
        r#"{
  "$schema": "https://opencode.ai/config.json",
  // servers
  "mcp": {
    "used": {
      "type": "local",
      "command": ["@SERVER@"],
      "environment": { "TOKEN": "{env:TOKEN}" },
      "enabled": true,
    },
    "time": {
      "type": "local",
      "command": [
        "uvx",
        "mcp-server-time",
      ],
    },
    "sentry": { "type": "remote", "url": "https://mcp.sentry.dev/mcp" },
  },
}
"#,
    ),
    json(
        "opencode",
        "project/opencode.json",
        1,
        r#"{ "mcp": { "servers": { "used": { "type": "local", "command": ["@SERVER@"] } } } }
"#,
    ),
    json(
        "zed",
        "home/.config/zed/settings.json",
        2,
        r#"// Zed settings
{
  "theme": "One Dark",
  "context_servers": {
    "used": {
      "source": "custom",
      "command": "@SERVER@",
      "args": [],
      "env": {}
    },
    "older": {
      "command": { "path": "npx", "args": ["-y", "@x/y"], "env": null },
      "settings": {}
    },
    "extension": { "source": "extension", "settings": {} }
  },
  "buffer_font_size": 15,
}
"#,
    ),
    json(
        "cline",
        "home/.cline/data/settings/cline_mcp_settings.json",
        1,
        r#"{
  "mcpServers": {
    "used": { "command": "@SERVER@", "args": [], "disabled": false, "autoApprove": ["echo"] }
  }
}
"#,
    ),
    json(
        "cline",
        "home/.config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        1,
        r#"{ "mcpServers": { "used": { "command": "@SERVER@" } } }"#,
    ),
    yaml(
        "continue",
        "home/.continue/config.yaml",
        2,
        r#"name: Mine
version: 1.0.0
schema: v1
models:
  - name: Local
    provider: ollama
mcpServers:
  - name: used
    command: @SERVER@
    args: []
    env:
      TOKEN: ${{ secrets.TOKEN }}
  # the browser
  - name: "Browser: mine"
    command: npx
    args:
      - "-y"
      # newest
      - "@playwright/mcp@latest"
  - url: https://example.com/sse
    name: remote
"#,
    ),
    yaml(
        "continue",
        "project/.continue/mcpServers/docs.yaml",
        1,
        r#"name: Docs
mcpServers:
- name: used
  command: "@SERVER@"
"#,
    ),
    json(
        "continue",
        "project/.continue/mcpServers/more.json",
        1,
        r#"{"mcpServers": {"used": {"command": "@SERVER@", "args": []}}}"#,
    ),
    yaml(
        "goose",
        "home/.config/goose/config.yaml",
        2,
        r#"GOOSE_PROVIDER: anthropic
extensions:
  developer:
    bundled: true
    enabled: true
    name: developer
    timeout: 300
    type: builtin
  used:
    args: []
    cmd: @SERVER@
    enabled: true
    env_keys:
    - TOKEN
    envs: {}
    name: used
    timeout: 300
    type: stdio
  memory:
    cmd: npx   # why
    args:
    - -y
    - '@modelcontextprotocol/server-memory'
    type: stdio
  remote:
    type: streamable_http
    uri: https://example.com/mcp
GOOSE_MODE: smart_approve
"#,
    ),
];

impl Fixture {
    /// The text with the real server in it, in every way people write it.
    pub(crate) fn texts(&self, server: &str) -> Vec<String> {
        let plain = self.text.replace("@SERVER@", server);
        let tabs = plain.replace("  ", "\t");
        let mut texts = vec![
            plain.replace('\n', "\r\n"),
            format!("\u{feff}{plain}"),
            plain.trim_end().to_owned(),
        ];
        if self.tabs {
            texts.push(format!("\u{feff}{}", tabs.replace('\n', "\r\n")));
            texts.push(tabs);
        }
        texts.push(plain);
        texts
    }
}
