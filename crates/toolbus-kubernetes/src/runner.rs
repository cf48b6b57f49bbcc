//! The runner of scripts in pods.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use toolbus_sandbox::Watcher;
use toolbus_scripts::config::KubernetesConfig;
use toolbus_scripts::packages::PackageError;
use toolbus_scripts::runner::{Finished, RunFailure, Runner, RunnerStatus, Script};

use crate::cleanup::PodCleaner;
use crate::failure::ApiFailure;
use crate::pod::PodTemplate;
use crate::run::PodRuns;

/// Runs each script in a pod of its own.
pub struct KubernetesRunner {
    runs: PodRuns,
}

/// Why no script can be run in a cluster. The texts are for an operator.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The daemon does not run in a pod, or without a service account.
    #[error(
        "script.runner: this process has no service account of Kubernetes: {0}; run it in a pod, or give \
         `script.kubernetes.kubeconfig`"
    )]
    NotInCluster(String),
    /// The file says not how to reach a cluster.
    #[error("script.kubernetes.kubeconfig: the file `{}` cannot be used: {error}", file.display())]
    Kubeconfig {
        /// The file.
        file: PathBuf,
        /// Why.
        error: String,
    },
    /// The API server refuses what the runner needs.
    #[error("script.kubernetes: {0}")]
    Refused(ApiFailure),
}

impl KubernetesRunner {
    /// Connects to the cluster, and deletes the pods that earlier daemons have left. An API server that is away is tried
    /// again by each script.
    ///
    /// # Errors
    ///
    /// If the configuration leads to no cluster, or the API server refuses to list pods.
    pub async fn start(config: &KubernetesConfig, template: PodTemplate) -> Result<Self, ClusterError> {
        let namespace: Arc<str> = config.namespace.as_str().into();
        let pods = Api::namespaced(client(config.kubeconfig.as_deref()).await?, &namespace);
        let cleaner = PodCleaner::new(pods.clone(), Arc::clone(&namespace));
        match cleaner.sweep().await {
            Ok(()) => {}
            Err(failure @ ApiFailure::Refused(_)) => return Err(ClusterError::Refused(failure)),
            Err(failure) => tracing::warn!(error = %failure, "pods of scripts cannot be swept"),
        }
        cleaner.start();
        tracing::info!(%namespace, image = template.image, "scripts run in pods");
        Ok(Self { runs: PodRuns { pods, namespace, template, cleaner } })
    }

    async fn run_script(&self, script: Script, watcher: Option<&Watcher>) -> Result<Finished, RunFailure> {
        if !script.packages.is_empty() {
            let text = "No packages can be installed here. Use the standard library, and packages that the operator has \
                        installed for all scripts.";
            return Err(PackageError::Refused(text.to_owned()).into());
        }
        self.runs.run(&script, watcher).await
    }
}

/// A client that sends each request once: what is sent again is decided by what it was for.
async fn client(kubeconfig: Option<&Path>) -> Result<Client, ClusterError> {
    let mut config = match kubeconfig {
        None => Config::incluster().map_err(|error| ClusterError::NotInCluster(error.to_string()))?,
        Some(file) => {
            let mistake = |error: String| ClusterError::Kubeconfig { file: file.to_owned(), error };
            let read = Kubeconfig::read_from(file).map_err(|error| mistake(error.to_string()))?;
            let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
            config.map_err(|error| mistake(error.to_string()))?
        }
    };
    config.default_retry = false;
    Client::try_from(config).map_err(|error| match kubeconfig {
        None => ClusterError::NotInCluster(error.to_string()),
        Some(file) => ClusterError::Kubeconfig { file: file.to_owned(), error: error.to_string() },
    })
}

impl Runner for KubernetesRunner {
    fn run_watched<'a>(
        &'a self,
        script: Script,
        watcher: Option<&'a Watcher>,
    ) -> BoxFuture<'a, Result<Finished, RunFailure>> {
        self.run_script(script, watcher).boxed()
    }

    fn status(&self) -> RunnerStatus {
        RunnerStatus {
            runner: "kubernetes",
            level: None,
            layers: vec!["namespaces", "seccomp", "cgroups"],
            python: None,
            warm: 0,
            mode: None,
        }
    }

    fn shutdown(&self) -> BoxFuture<'_, ()> {
        self.runs.cleaner.shutdown().boxed()
    }
}
