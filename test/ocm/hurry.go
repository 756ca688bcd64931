package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"open-cluster-management.io/ocm/pkg/registration/register"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/generic/clients"
)

// hurry shortens the waits of agents.
func hurry() error {
	every, err := duration("HAWSER_TEST_RESYNC")
	if err != nil {
		return err
	}
	if every > 0 {
		register.ControllerResyncInterval = every
	}
	retry, err := duration("HAWSER_TEST_RETRY")
	if err == nil && retry > 0 {
		clients.DelayFn = func() time.Duration { return retry }
	}
	return err
}

// duration reads a duration from the environment, 0 if it is not set.
func duration(name string) (time.Duration, error) {
	text := os.Getenv(name)
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err == nil && d <= 0 {
		err = errors.New("must be positive")
	}
	if err != nil {
		return 0, fmt.Errorf("%s %q: %w", name, text, err)
	}
	return d, nil
}
