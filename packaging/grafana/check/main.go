// Decodes a dashboard from standard input with Grafana's own types, and refuses any field that these do not have.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func main() {
	plugins.RegisterDefaultPlugins()
	text, err := io.ReadAll(os.Stdin)
	fail(err)
	var decoded dashboard.Dashboard
	fail(decoded.UnmarshalJSONStrict(text))
	fail(decoded.Validate())
}

// The SDK may return an error without any mistake in it.
func fail(err error) {
	if err != nil && err.Error() != "" {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
