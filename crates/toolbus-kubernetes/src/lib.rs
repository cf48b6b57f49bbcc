//! Runs scripts in pods of a Kubernetes cluster.
//!
//! [`KubernetesRunner`] makes a pod for each script (`pod.rs`), follows it (`run.rs`, `watch.rs`, `state.rs`), reads what
//! its first process (`supervisor.py`) writes to the log (`log.rs`), and deletes it (`cleanup.rs`). Script and input travel
//! in the pod's environment, so that the right to create, watch and delete pods and to read their log is enough.
//!
//! With a warm pool of agent-sandbox it claims a sandbox for each script instead (`claim.rs`), whose pod runs already, and
//! starts the same supervisor in it (`exec.rs`).

mod claim;
mod cleanup;
mod exec;
mod failure;
mod log;
mod pod;
mod run;
mod runner;
mod state;
mod watch;

pub use failure::ApiFailure;
pub use pod::PodTemplate;
pub use runner::{ClusterError, KubernetesRunner};
