//! Other agents: their directory, and tasks for them.
//!
//! * [`announcer`]: the daemon as an agent.
//! * [`config`]: the section of the configuration.
//! * [`directory`]: the known agents, and the rules for giving tasks to them.
//! * [`tools`]: what agents call.
//! * [`service`]: sends tasks, and takes reports on them.

pub mod announcer;
mod card;
pub mod config;
pub mod directory;
mod ends;
mod http;
mod overview;
mod report;
pub mod service;
mod tasks;
pub mod tools;

pub use self::announcer::{Announcer, MAX_TASK_BODY, SkillCancelHandler, SkillHandler};
pub use self::config::A2aConfig;
pub use self::directory::{AgentDirectory, AgentsError, AllowedAgents};
pub use self::overview::AgentTaskSummary;
pub use self::service::{AgentService, AnnouncementHandler, TaskHandoverHandler, TaskReportHandler};
pub use self::tasks::AgentTasks;
pub use self::tools::{A2aTools, GUIDE, NAMES};
