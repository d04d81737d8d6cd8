//! The MCP side: five tools over one store.

use std::sync::Arc;

use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::wrapper::{Json, Parameters};
use rmcp::{ServerHandler, schemars, tool, tool_handler, tool_router};
use tokio::sync::Mutex;

use crate::store::{Note, Page, Store, StoreError};

/// How many notes a list shows unless told otherwise.
const LIMIT: u32 = 50;

/// The server of one session.
#[derive(Debug)]
pub(crate) struct Notes {
    store: Arc<Mutex<Store>>,
    router: ToolRouter<Notes>,
}

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct AddNote {
    /// A short title
    title: Option<String>,
    /// What the note says
    text: String,
}

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct PutNote {
    /// The name under which the note is kept; writing to it again replaces the note
    key: String,
    /// A short title
    title: Option<String>,
    /// What the note says
    text: String,
}

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct GetNote {
    /// The note's number
    id: i64,
}

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct ListNotes {
    /// How many to show at most; 50 unless given
    limit: Option<u32>,
}

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct SearchNotes {
    /// The words to look for, as they stand in the note
    query: String,
    /// How many to show at most; 50 unless given
    limit: Option<u32>,
}

/// The number of the note that was written.
#[derive(Debug, serde::Serialize, schemars::JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Written {
    /// The number that `get_note` takes
    id: i64,
}

#[tool_router]
impl Notes {
    pub(crate) fn on(store: Arc<Mutex<Store>>) -> Notes {
        Notes {
            store,
            router: Notes::tool_router(),
        }
    }

    #[tool(
        description = "Add a note. Calling it twice adds two.",
        annotations(
            destructive_hint = false,
            idempotent_hint = false,
            open_world_hint = false
        )
    )]
    async fn add_note(
        &self,
        Parameters(AddNote { title, text }): Parameters<AddNote>,
    ) -> Result<Json<Written>, String> {
        self.ask(move |store| {
            Ok(Written {
                id: store.add(title.as_deref(), &text)?,
            })
        })
        .await
    }

    #[tool(
        description = "Write the note kept under a key, replacing what it said. Calling it twice is as good as once.",
        annotations(
            destructive_hint = true,
            idempotent_hint = true,
            open_world_hint = false
        )
    )]
    async fn put_note(
        &self,
        Parameters(PutNote { key, title, text }): Parameters<PutNote>,
    ) -> Result<Json<Written>, String> {
        self.ask(move |store| {
            Ok(Written {
                id: store.put(&key, title.as_deref(), &text)?,
            })
        })
        .await
    }

    #[tool(
        description = "Show one note by its number.",
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn get_note(
        &self,
        Parameters(GetNote { id }): Parameters<GetNote>,
    ) -> Result<Json<Note>, String> {
        self.ask(move |store| store.get(id)).await
    }

    #[tool(
        description = "Show the newest notes.",
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn list_notes(
        &self,
        Parameters(ListNotes { limit }): Parameters<ListNotes>,
    ) -> Result<Json<Page>, String> {
        self.ask(move |store| store.list(limit.unwrap_or(LIMIT)))
            .await
    }

    #[tool(
        description = "Show the newest notes whose key, title or text contains the query.",
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn search_notes(
        &self,
        Parameters(SearchNotes { query, limit }): Parameters<SearchNotes>,
    ) -> Result<Json<Page>, String> {
        self.ask(move |store| store.search(&query, limit.unwrap_or(LIMIT)))
            .await
    }

    /// Lets the store work on a thread of its own, since a disk may be slow. The turns are taken in
    /// the order of asking: what is piped in at once happens in that order.
    async fn ask<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<Json<T>, String> {
        let mut turn = self.store.clone().lock_owned().await;
        tokio::task::spawn_blocking(move || act(&mut turn))
            .await
            .map_err(|_| "the store failed in the middle of this; try again".to_owned())?
            .map(Json)
            .map_err(|error| error.to_string())
    }
}

#[tool_handler(
    router = self.router,
    name = "notes",
    instructions = "Keeps notes in a local database. add_note and put_note return a number once the note is safely on disk; search_notes finds it again."
)]
impl ServerHandler for Notes {}
