// Command release packs built programs into container images, without a daemon and without a base image, and
// into release archives. The output does not depend on machine, folder or time: the same commit and the same Go
// give the same bytes. `make images` and `make release` run it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	b := build{printf: func(line string) { fmt.Println(line) }}
	flags.StringVar(&b.root, "root", ".", "the repository, whose bin/OS_ARCH has the programs")
	flags.StringVar(&b.version, "version", "", "the version that the programs were built as")
	platforms := flags.String("platforms", "", "OS/ARCH,…: what the programs were built for")
	seconds := flags.Int64("time", 0, "the time that what is packed has, in seconds since 1970")
	if err := flags.Parse(args); err != nil {
		return err
	}
	b.at = time.Unix(*seconds, 0).UTC()
	for name := range strings.SplitSeq(*platforms, ",") {
		p, err := v1.ParsePlatform(name)
		if err != nil || p.OS == "" || p.Architecture == "" {
			return fmt.Errorf("-platforms: %q is not OS/ARCH", name)
		}
		b.platforms = append(b.platforms, *p)
	}
	switch what := flags.Arg(0); {
	case b.version == "":
		return errors.New("-version is not set")
	case what == "images":
		return b.images()
	case what == "archives":
		return b.archives()
	default:
		return fmt.Errorf("%q: say images or archives", what)
	}
}
