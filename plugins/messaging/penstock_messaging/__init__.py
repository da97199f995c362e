"""Consumers, retries, delays, and configuration of topics and groups, in RocketMQ's topics and files."""
