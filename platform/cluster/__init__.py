"""The cluster a study runs on: found or started, waited for, looked over before the first trial, swept after a kill."""
