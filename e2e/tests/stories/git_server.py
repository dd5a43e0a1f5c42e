"""A git server for one story: git's own http-backend, with a password."""
import base64
import http.server
import os
import subprocess

WANTED = "Basic " + base64.b64encode(b"git:" + os.environ["PASSWORD"].encode()).decode()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def serve(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Authorization") != WANTED:
            return self.answer(401, "text/plain", b"no")
        path, _, query = self.path.partition("?")
        environment = {
            "PATH": os.environ["PATH"], "HOME": "/tmp", "GIT_PROJECT_ROOT": "/srv/git", "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
            "REQUEST_METHOD": self.command, "PATH_INFO": path, "QUERY_STRING": query, "CONTENT_LENGTH": str(len(body)),
            "CONTENT_TYPE": self.headers.get("Content-Type", ""), "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        said = subprocess.run(["git", "http-backend"], input=body, env=environment, stdout=subprocess.PIPE, check=False).stdout
        head, _, content = said.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().splitlines() if ": " in line)
        self.answer(int(fields.get("Status", "200").split()[0]), fields.get("Content-Type", "text/plain"), content)

    def answer(self, status, kind, content):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = serve


http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
