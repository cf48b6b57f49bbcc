//! The runner of scripts in pods: those that it makes, or those of a warm pool.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DynamicObject;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::ApiResource;
use kube::{Api, Client, Config};
use toolbus_sandbox::Watcher;
use toolbus_scripts::config::KubernetesConfig;
use toolbus_scripts::packages::PackageError;
use toolbus_scripts::runner::{Finished, RunFailure, Runner, RunnerStatus, Script};

use crate::claim::WarmPool;
use crate::cleanup::ObjectCleaner;
use crate::failure::ApiFailure;
use crate::pod::PodTemplate;
use crate::run::PodRuns;
use crate::watch::Objects;

/// Runs each script in a pod of its own, which it makes, or gets from a warm pool.
pub struct KubernetesRunner {
    runs: PodRuns,
}

/// Reason why no script can be run in a cluster. The texts are for an operator.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The daemon does not run in a pod, or without a service account.
    #[error(
        "script.runner: this process has no service account of Kubernetes: {0}; run it in a pod, or give \
         `script.kubernetes.kubeconfig`"
    )]
    NotInCluster(String),
    /// The file does not describe access to a cluster.
    #[error("script.kubernetes.kubeconfig: the file `{}` cannot be used: {error}", file.display())]
    Kubeconfig {
        /// The file.
        file: PathBuf,
        /// The reason.
        error: String,
    },
    /// The API server refuses a request that the runner needs.
    #[error("script.kubernetes: {0}")]
    Refused(ApiFailure),
}

impl KubernetesRunner {
    /// Connects to the cluster, and deletes what earlier daemons have left. An API server that is away is tried
    /// again by each script.
    ///
    /// # Errors
    ///
    /// If the configuration leads to no cluster, or the API server refuses to list pods or claims.
    pub async fn start(config: &KubernetesConfig, template: PodTemplate) -> Result<Self, ClusterError> {
        let namespace: Arc<str> = config.namespace.as_str().into();
        let client = client(config.kubeconfig.as_deref()).await?;
        let pods = Objects {
            api: Api::namespaced(client.clone(), &namespace),
            resource: "pods",
            namespace: Arc::clone(&namespace),
        };
        let warm_pool = config.warm_pool.as_deref().map(|name| WarmPool::new(&client, &namespace, name));
        let cleaner = ObjectCleaner::new(match &warm_pool {
            Some(pool) => pool.claims.clone(),
            None => {
                let kind = ApiResource::erase::<Pod>(&());
                let api: Api<DynamicObject> = Api::namespaced_with(client, &namespace, &kind);
                Objects { api, resource: pods.resource, namespace: Arc::clone(&namespace) }
            }
        });
        match cleaner.sweep().await {
            Ok(()) => {}
            Err(failure @ ApiFailure::Refused(_)) => return Err(ClusterError::Refused(failure)),
            Err(failure) => tracing::warn!(error = %failure, "leftovers of scripts cannot be deleted"),
        }
        cleaner.start();
        match &warm_pool {
            Some(pool) => tracing::info!(%namespace, warm_pool = pool.name, "scripts run in sandboxes of a warm pool"),
            None => tracing::info!(%namespace, image = template.image, "scripts run in pods"),
        }
        Ok(Self { runs: PodRuns { pods, warm_pool, template, cleaner } })
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

/// A client that sends each request once: the caller decides on a retry.
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
            layers: match &self.runs.warm_pool {
                // Of the rest the pool's template decides.
                Some(_) => vec!["namespaces", "cgroups"],
                None => vec!["namespaces", "seccomp", "cgroups"],
            },
            python: None,
            warm: 0,
            mode: None,
        }
    }

    fn shutdown(&self) -> BoxFuture<'_, ()> {
        self.runs.cleaner.shutdown().boxed()
    }
}
