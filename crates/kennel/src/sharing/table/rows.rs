//! The rows, by registry and name. `docs/SHARING.md` shows them; a test compares both.

use super::{Registry, Row, Rule};
use crate::names::Names;
use Rule::{Always, InTurn, Modern, Never};

const INDEPENDENT: &str = "known to be safe: every call is independent";

const fn npm(
    package: &'static str,
    programs: &'static [&'static str],
    (rule, why): (Rule, &'static str),
    seen: &'static str,
    evidence: &'static str,
) -> Row {
    Row {
        package: Some((Registry::Npm, package)),
        programs,
        module: None,
        rule,
        why,
        reads: None,
        seen,
        evidence,
    }
}

const fn pypi(
    package: &'static str,
    programs: &'static [&'static str],
    module: Option<&'static str>,
    (rule, why): (Rule, &'static str),
    seen: &'static str,
    evidence: &'static str,
) -> Row {
    Row {
        package: Some((Registry::PyPi, package)),
        programs,
        module,
        rule,
        why,
        reads: None,
        seen,
        evidence,
    }
}

impl Row {
    /// Adds the variables that it reads.
    const fn reading(mut self, variables: &'static str) -> Row {
        self.reads = Some(Names(variables));
        self
    }
}

/// All known servers.
pub(crate) static ROWS: &[Row] = &[
    npm(
        "@21st-dev/magic",
        &[],
        (Never, "relays one session to a remote server"),
        "0.2.3",
        "A relay to a remote server under one session id, one message after the other; what the remote keeps \
         per session is not known.",
    ),
    npm(
        "@antv/mcp-server-chart",
        &["mcp-server-chart"],
        (Always, INDEPENDENT),
        "0.9.10",
        "Each tool sends its arguments to a rendering service and returns the answer; nothing outlives a call.",
    )
    .reading("VIS_REQUEST_SERVER SERVICE_ID DISABLED_TOOLS"),
    npm(
        "@azure-devops/mcp",
        &["mcp-server-azuredevops"],
        (Never, "asks the person during a call"),
        "2.10.0",
        "Asks for a project or team by elicitation where a call leaves it out: two calls at once, and the \
         question has no owner.",
    ),
    npm(
        "@brave/brave-search-mcp-server",
        &["brave-search-mcp-server"],
        (Always, INDEPENDENT),
        "2.1.4",
        "Each tool is one request to the search API with the key of its environment; the tools are fixed at start.",
    )
    .reading("BRAVE_*"),
    npm(
        "@browsermcp/mcp",
        &["mcp-server-browsermcp"],
        (Never, "drives one browser tab"),
        "0.1.3",
        "Drives the one tab that is connected to its WebSocket, and ends whoever holds its port when it starts.",
    ),
    npm(
        "@cloudflare/mcp-server-cloudflare",
        &["mcp-server-cloudflare"],
        (Always, INDEPENDENT),
        "0.2.0",
        "Each tool is a request to the API for the account of its arguments; what it keeps is the user's own \
         access token.",
    )
    .reading("CLOUDFLARE_* XDG_CONFIG_HOME"),
    npm(
        "@colbymchenry/codegraph",
        &["codegraph"],
        (Never, "leaves out what its session was sent before"),
        "1.6.1",
        "Leaves source out of an answer that an earlier call of the session was sent, and takes its project \
         from the client's roots (read in codegraph-linux-x64).",
    ),
    npm(
        "@eslint/mcp",
        &[],
        (Always, INDEPENDENT),
        "0.3.13",
        "Its one tool makes a new ESLint for every call; files are named in full, and the directory it starts \
         in is part of the key.",
    )
    .reading("ESLINT_* CI"),
    npm(
        "@executeautomation/playwright-mcp-server",
        &["playwright-mcp-server"],
        (Never, "keeps a browser per session"),
        "1.0.12",
        "Browser and page are variables of the process: a second session would steer the first one's page.",
    ),
    npm(
        "@kimtaeyoon83/mcp-server-youtube-transcript",
        &["mcp-server-youtube-transcript"],
        (Always, INDEPENDENT),
        "0.1.1",
        "Its one tool fetches the transcript its arguments name; nothing outlives a call.",
    )
    .reading(""),
    npm(
        "@mobilenext/mobile-mcp",
        &["mcp-server-mobile"],
        (Never, "drives devices and keeps recordings"),
        "1.0.4",
        "Keeps running screen recordings, login processes and a robot per device in the process.",
    ),
    npm(
        "@modelcontextprotocol/server-aws-kb-retrieval",
        &["mcp-server-aws-kb-retrieval"],
        (Always, INDEPENDENT),
        "0.6.2",
        "Its one tool is one request to Bedrock with everything in its arguments.",
    )
    .reading("AWS_*"),
    npm(
        "@modelcontextprotocol/server-brave-search",
        &["mcp-server-brave-search"],
        (Never, "allows one search a second per process"),
        "0.6.2",
        "Counts searches in the process and refuses the second within a second: one session would be refused \
         for another's.",
    ),
    npm(
        "@modelcontextprotocol/server-everything",
        &["mcp-server-everything"],
        (Never, "keeps roots, timers and resources per session"),
        "2026.8.31",
        "Keeps roots, log and update timers by session id, which stdio does not have, so all sessions would be treated as one; also calls back for roots, sampling and elicitation.",
    ),
    npm(
        "@modelcontextprotocol/server-filesystem",
        &["mcp-server-filesystem"],
        (Never, "its client's roots decide which files it may touch"),
        "2026.8.31",
        "Replaces the directories it may touch by the roots of the client: one session's roots would open \
         files to all.",
    ),
    npm(
        "@modelcontextprotocol/server-gdrive",
        &["mcp-server-gdrive"],
        (Always, INDEPENDENT),
        "2025.1.14",
        "Search and reading are single requests to the API with the user's own credentials; read-only.",
    )
    .reading("GDRIVE_* GOOGLE_* GCLOUD_PROJECT"),
    npm(
        "@modelcontextprotocol/server-github",
        &["mcp-server-github"],
        (Always, INDEPENDENT),
        "2025.4.8",
        "Each tool sends requests to the API with the token of its environment; no variable outlives a call.",
    )
    .reading("GITHUB_PERSONAL_ACCESS_TOKEN"),
    npm(
        "@modelcontextprotocol/server-gitlab",
        &["mcp-server-gitlab"],
        (Always, INDEPENDENT),
        "2025.4.25",
        "Each tool sends requests to the API with the token of its environment; no variable outlives a call.",
    )
    .reading("GITLAB_PERSONAL_ACCESS_TOKEN GITLAB_API_URL"),
    npm(
        "@modelcontextprotocol/server-google-maps",
        &["mcp-server-google-maps"],
        (Always, INDEPENDENT),
        "0.6.2",
        "Each tool is one request to the API with the key of its environment.",
    )
    .reading("GOOGLE_MAPS_API_KEY"),
    npm(
        "@modelcontextprotocol/server-memory",
        &["mcp-server-memory"],
        (
            InTurn,
            "known to be safe in turn: its file is read anew for every call",
        ),
        "2026.8.31",
        "Reads its file anew for every call and renames a new one over it; of a session it keeps only whether \
         its one resource is subscribed. Of two writes at the same moment it loses one, in one process as in two: \
         so its calls take turns, and none is lost.",
    )
    .reading("MEMORY_FILE_PATH"),
    npm(
        "@modelcontextprotocol/server-postgres",
        &["mcp-server-postgres"],
        (Always, INDEPENDENT),
        "0.6.2",
        "Each query borrows a connection of a pool, in a read-only transaction that is rolled back, and with \
         it what the query set.",
    )
    .reading("PG* USER"),
    npm(
        "@modelcontextprotocol/server-puppeteer",
        &["mcp-server-puppeteer"],
        (Never, "keeps a browser per session"),
        "2025.5.12",
        "Browser, page, console log and screenshots are variables of the process.",
    ),
    npm(
        "@modelcontextprotocol/server-redis",
        &["mcp-server-redis"],
        (Always, INDEPENDENT),
        "2025.4.25",
        "One connection for set, get, delete and list alone; no tool can change the state of the connection.",
    )
    .reading(""),
    npm(
        "@modelcontextprotocol/server-sequential-thinking",
        &["mcp-server-sequential-thinking"],
        (Never, "counts the thoughts of its session"),
        "2026.8.31",
        "Answers with the length of one history and the names of all branches: a session would get another one's thoughts.",
    ),
    npm(
        "@modelcontextprotocol/server-slack",
        &["mcp-server-slack"],
        (Always, INDEPENDENT),
        "2025.4.25",
        "Each tool is a request to the API; its client holds the token's header and nothing else.",
    )
    .reading("SLACK_BOT_TOKEN SLACK_TEAM_ID SLACK_CHANNEL_IDS"),
    npm(
        "@notionhq/notion-mcp-server",
        &["notion-mcp-server"],
        (Always, INDEPENDENT),
        "2.5.2",
        "Makes its tools from a fixed description at start; each call is one request with the headers of its \
         environment.",
    )
    .reading("NOTION_TOKEN OPENAPI_MCP_HEADERS BASE_URL AUTH_TOKEN ENABLE_TOKEN_PASSTHROUGH"),
    npm(
        "@perplexity-ai/mcp-server",
        &["perplexity-mcp"],
        (Always, INDEPENDENT),
        "1.2.1",
        "Each tool is one request to the API; progress goes to the token of its own call.",
    )
    .reading("PERPLEXITY_*"),
    npm(
        "@playwright/mcp",
        &["playwright-mcp"],
        (Never, "keeps a browser per session"),
        "0.0.83",
        "One browser and its tabs per connection, in a profile chosen by the client's first root (read in \
         playwright-core 1.65.0).",
    ),
    npm(
        "@sentry/mcp-server",
        &["sentry-mcp"],
        (Always, INDEPENDENT),
        "0.36.0",
        "Account, host and tools are fixed at start; each tool asks the API, and nothing is kept between calls.",
    )
    .reading("SENTRY_* MCP_URL MCP_SKILLS MCP_DISABLE_SKILLS OPENAI_* ANTHROPIC_* EMBEDDED_AGENT_PROVIDER \
         XDG_DATA_HOME LOG_LEVEL"),
    npm(
        "@stripe/mcp",
        &[],
        (Never, "relays one session to a remote server"),
        "0.3.3",
        "Passes every message to one remote session that it opens for the first client; what the remote keeps \
         per session is not known.",
    ),
    npm(
        "@supabase/mcp-server-supabase",
        &["mcp-server-supabase"],
        (Always, INDEPENDENT),
        "0.13.0",
        "Each tool asks the API, and a confirmed cost is a hash of its arguments; it asks the person only in \
         results of modern sessions. The first client's name goes into the User-Agent.",
    )
    .reading("SUPABASE_ACCESS_TOKEN SUPABASE_CONTENT_API_URL"),
    npm(
        "@upstash/context7-mcp",
        &["context7-mcp"],
        (
            Modern,
            "modern sessions are independent; older ones are asked to sign in",
        ),
        "4.1.1",
        "Each call is one request. A legacy process remembers the first client's name, and may ask an \
         anonymous person to sign in, with that client's command; a modern one does neither.",
    )
    .reading("CONTEXT7_* MCP_MAX_SUBSCRIPTIONS"),
    npm(
        "@wonderwhy-er/desktop-commander",
        &["desktop-commander"],
        (Never, "keeps terminals per session"),
        "0.2.52",
        "Keeps running commands, searches and the name of its client in the process; tools list and end them all.",
    ),
    npm(
        "airtable-mcp-server",
        &["airtable-mcp-server"],
        (Always, INDEPENDENT),
        "1.14.0",
        "Each tool is a request to the API with the key of its environment; nothing outlives a call.",
    )
    .reading("AIRTABLE_API_KEY MCP_TRANSPORT"),
    npm(
        "chrome-devtools-mcp",
        &["chrome-devtools-mcp"],
        (Never, "keeps a browser per session"),
        "1.11.0",
        "One browser with one selected page per process, and one tool at a time behind a mutex.",
    ),
    npm(
        "exa-mcp-server",
        &["exa-mcp-server"],
        (Always, INDEPENDENT),
        "3.4.1",
        "Each tool is a request to the API; a long run is named by the id its caller got, and progress goes to \
         the token of its own call.",
    )
    .reading("EXA_API_KEY AGNOST_* DEBUG"),
    npm(
        "figma-developer-mcp",
        &["figma-developer-mcp"],
        (Always, INDEPENDENT),
        "0.13.2",
        "Each tool fetches the file its arguments name; images go below the directory of its options or the \
         one it starts in, and both are part of the key.",
    )
    .reading("FIGMA_* FRAMELINK_* IMAGE_DIR OUTPUT_FORMAT SKIP_IMAGE_DOWNLOADS DO_NOT_TRACK"),
    npm(
        "firecrawl-mcp",
        &["firecrawl-mcp"],
        (Never, "sends log messages about every call"),
        "3.22.2",
        "Calls are independent, but each is logged with its addresses and queries, and every session would get these log messages.",
    ),
    npm(
        "mcp-remote",
        &["mcp-remote"],
        (Never, "relays one session to a remote server"),
        "0.15.1",
        "Passes every message to one remote session; what the remote keeps per session is not known.",
    ),
    npm(
        "mcp-server-kubernetes",
        &["mcp-server-kubernetes"],
        (Never, "keeps port forwards and the chosen context"),
        "4.1.7",
        "Keeps port forwards and what was created in the process, and a tool switches the cluster all others use.",
    ),
    npm(
        "mongodb-mcp-server",
        &["mongodb-mcp-server"],
        (Never, "keeps database connections per session"),
        "3.0.4",
        "Its connect and disconnect tools open and close connections that the process keeps for later calls \
         (read in @mongodb-js/mcp-tools-mongodb 3.0.4).",
    ),
    npm(
        "puppeteer-mcp-server",
        &[],
        (Never, "keeps a browser per session"),
        "0.7.2",
        "Browser and page are kept in the process: a second session would steer the first one's page.",
    ),
    npm(
        "task-master-ai",
        &["task-master-ai", "task-master-mcp"],
        (Never, "asks its client's model during a call"),
        "0.43.1",
        "Can do its work by sampling, on the session that it registers as a provider of models for the process.",
    ),
    npm(
        "tavily-mcp",
        &["tavily-mcp"],
        (Always, INDEPENDENT),
        "0.2.22",
        "Each tool is one request to the API; the random id it sends along names the process, for statistics.",
    )
    .reading("TAVILY_* DEFAULT_PARAMETERS"),
    npm(
        "xcodebuildmcp",
        &["xcodebuildmcp"],
        (Never, "keeps defaults per session"),
        "2.7.0",
        "Tools set the project, scheme and simulator that later calls take, in one store of the process.",
    ),
    pypi(
        "duckduckgo-mcp-server",
        &["duckduckgo-mcp-server"],
        None,
        (Never, "sends log messages about every call"),
        "0.7.0",
        "Logs every search, and every session would get these log messages; keeps a register of the links it returned.",
    ),
    pypi(
        "godot-ai",
        &["godot-ai"],
        Some("godot_ai"),
        (Never, "keeps the chosen editor per session"),
        "4.3.1",
        "A tool chooses the editor that later calls go to, and the choice is the process's.",
    ),
    pypi(
        "jupyter-mcp-server",
        &["jupyter-mcp-server", "jupyter-mcp"],
        Some("jupyter_mcp_server"),
        (Never, "keeps notebooks and kernels per session"),
        "2.2.4",
        "Keeps the notebooks that were opened, and which is the current one, in the process.",
    ),
    pypi(
        "markitdown-mcp",
        &["markitdown-mcp"],
        Some("markitdown_mcp"),
        (Never, "converts one document at a time"),
        "0.0.1a8",
        "Calls are independent, but a conversion holds up the whole process: one session would wait for another's.",
    ),
    pypi(
        "mcp-atlassian",
        &["mcp-atlassian"],
        None,
        (Never, "makes one request at a time"),
        "0.23.1",
        "Calls are independent, but most ask the API in a way that holds up the whole process: one session \
         would wait for another's.",
    ),
    pypi(
        "mcp-server-fetch",
        &["mcp-server-fetch"],
        Some("mcp_server_fetch"),
        (Always, INDEPENDENT),
        "2026.10.24",
        "Each call fetches the address it is given, and only turning a page into text holds up the others for \
         a moment; no tool reads the session or calls back. Both eras.",
    )
    .reading(""),
    pypi(
        "mcp-server-git",
        &["mcp-server-git"],
        Some("mcp_server_git"),
        (Always, INDEPENDENT),
        "2026.10.19",
        "Each call opens the repository it is given; no tool reads the session or calls back, and Git's own \
         locks serve writers in one process as in two. Both eras.",
    )
    .reading("GIT_AUTHOR_* GIT_COMMITTER_* GIT_CONFIG* GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY \
         GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_CEILING_DIRECTORIES GIT_EXEC_PATH GIT_PYTHON_* EMAIL \
         XDG_CONFIG_HOME TZ"),
    pypi(
        "mcp-server-qdrant",
        &["mcp-server-qdrant"],
        None,
        (Never, "sends log messages about every call"),
        "0.8.1",
        "Logs what is stored and searched, and every session that requested log messages would get them.",
    ),
    pypi(
        "mcp-server-sqlite",
        &["mcp-server-sqlite"],
        None,
        (Never, "keeps a memo per session"),
        "2025.4.25",
        "Collects insights in a memo of the process, and announces each to whoever is connected.",
    ),
    pypi(
        "mcp-server-time",
        &["mcp-server-time"],
        Some("mcp_server_time"),
        (Always, INDEPENDENT),
        "2026.10.19",
        "Computes from its arguments and the clock. Both eras.",
    )
    .reading("TZ"),
    pypi(
        "memtomem",
        &["memtomem-server", "memtomem"],
        None,
        (Never, "keeps a session and namespace per process"),
        "0.6.12",
        "The current session, agent and namespace are fields of the process that tools set for later calls.",
    ),
    pypi(
        "serena-agent",
        &["serena", "serena-agent"],
        None,
        (Never, "keeps the active project per session"),
        "2.1.0",
        "The active project, its modes and its language servers belong to the process, and tools switch them.",
    ),
    Row {
        package: None,
        programs: &["github-mcp-server"],
        module: None,
        rule: Never,
        why: "asks the person to sign in, and switches toolsets",
        reads: None,
        seen: "commit 20cc4cefb8",
        evidence: "Signs in by elicitation during the first call, and with dynamic toolsets a call adds tools \
                   for everyone who is connected.",
    },
];
