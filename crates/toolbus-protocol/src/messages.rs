//! Bodies of messages.

mod cancel;
mod invoke;
mod list;
mod members;
mod ping;
mod progress;
mod session;

pub use cancel::{ToolCancelRequest, ToolCancelResponse};
pub use invoke::{ContentBlock, ToolError, ToolInvokeRequest, ToolInvokeResponse};
pub use list::{Format, MAX_LISTED_NAMES, ToolListRequest, ToolListResponse, ToolsChanged, UnknownFormat};
pub use ping::{Ping, Pong};
pub use progress::ToolProgress;
pub use session::SessionEnd;
