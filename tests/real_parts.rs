//! The program and its services on real parts: Apache Kafka, a Kubernetes control plane, Python.

mod actuator;
mod support;

mod kafka_archiver;
mod kafka_bus;
mod kafka_fetch;
mod kafka_harness;
mod kafka_pipeline;
mod kafka_power_budget;
mod kafka_processor;
mod kafka_secured;
mod kafka_security;
mod kubernetes_actuator;
mod kubernetes_chart;
mod kubernetes_cli;
mod kubernetes_deploy;
mod kubernetes_devices;
mod kubernetes_faults;
mod kubernetes_harness;
mod kubernetes_kinds;
mod kubernetes_pods;
mod kubernetes_policy;
mod kubernetes_roles;
mod kubernetes_takeover;
mod kubernetes_tokens;
mod kubernetes_tutorial;
mod kubernetes_up;
mod python_archive;
mod python_dataset;
mod python_sql;
mod python_training;
