//! The fields of the events that there are many of, listed once for all code that is written out field by field: `$with!` gets a
//! name for the function, the type, and the fields in the order of their declaration.

/// Calls a macro with the fields of [`GpuTelemetry`](crate::v1::GpuTelemetry).
#[macro_export]
macro_rules! gpu_telemetry_fields {
    ($with:ident) => {
        $with! {
            gpu_telemetry,
            GpuTelemetry,
            time,
            workload,
            device,
            collector,
            meter,
            origin,
            node,
            gpu_index,
            gpu_model,
            last,
            tenure,
            share,
            share_method,
            tenants,
            power_watts,
            power_average_watts,
            energy_joules_total,
            utilization_ratio,
            memory_utilization_ratio,
            graphics_active_ratio,
            sm_active_ratio,
            sm_occupancy_ratio,
            tensor_active_ratio,
            fp32_active_ratio,
            dram_active_ratio,
            pcie_transmit_bytes_per_second,
            pcie_receive_bytes_per_second,
            memory_used_bytes,
            memory_total_bytes,
            sm_clock_mhz,
            memory_clock_mhz,
            temperature_celsius,
            memory_temperature_celsius,
            power_limit_watts,
            throttle_reasons,
            processes,
            mig_enabled,
            mps_enabled
        }
    };
}

/// Calls a macro with the fields of [`TrainingProgress`](crate::v1::TrainingProgress).
#[macro_export]
macro_rules! training_progress_fields {
    ($with:ident) => {
        $with! {
            training_progress,
            TrainingProgress,
            time,
            workload,
            rank,
            collector,
            scope,
            origin,
            phase,
            last,
            span,
            samples_total,
            tokens_total,
            steps_total,
            samples_per_second,
            tokens_per_second,
            loss,
            epoch,
            checkpoint_time,
            steps_remaining,
            remaining_seconds,
            global_batch_size,
            world_size,
            backend,
            precision,
            overflow_skips_total,
            gradient_norm,
            frozen_prefix_layers,
            mps_thread_percentage,
            validation_loss,
            learning_rate,
            loss_scale,
            layers,
            plasticity,
            live_knobs,
            decision_id,
            directive_refused
        }
    };
}
