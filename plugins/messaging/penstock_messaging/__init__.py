"""Consumers, retries, delays, and the configuration of topics and groups, on the topics and files of RocketMQ's broker."""
