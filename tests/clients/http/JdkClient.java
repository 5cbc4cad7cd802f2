import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.Map;

/** The JDK's HttpClient with its defaults: it offers h2c with every request. */
public class JdkClient {
    private static final Map<String, String> ENV = System.getenv();
    private static final HttpClient CLIENT = HttpClient.newHttpClient();

    private static String quoted(String text) {
        return "\"" + text.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", "\\n") + "\"";
    }

    private static void say(String step, int status, String body) {
        System.out.println("[" + quoted(step) + ", " + status + ", " + quoted(body) + "]");
    }

    private static HttpRequest.Builder to(String url, String key) {
        var request = HttpRequest.newBuilder(URI.create(url)).header("Content-Type", "application/json");
        return key == null ? request : request.header("Authorization", "Bearer " + key);
    }

    private static void post(String step, HttpRequest.Builder request, String body) throws Exception {
        var response = CLIENT.send(request.POST(BodyPublishers.ofString(body)).build(), BodyHandlers.ofString());
        say(step, response.statusCode(), response.body());
    }

    public static void main(String[] arguments) throws Exception {
        var session = ENV.get("API") + "/v1/sessions/" + ENV.get("SESSION");
        post("event", to(session + "/events", ENV.get("KEY")), ENV.get("EVENT"));
        post("callback", to(ENV.get("CALLBACK"), null), ENV.get("OUTCOME"));

        var following = to(session + "/events/stream?after=0", ENV.get("KEY")).GET().build();
        var stream = CLIENT.send(following, BodyHandlers.ofLines());
        var seen = new StringBuilder();
        stream.body().peek(line -> seen.append(line).append('\n')).anyMatch(line -> line.contains("tool.finished"));
        say("stream", stream.statusCode(), seen.toString());

        var accepts = to(ENV.get("MCP"), ENV.get("TOKEN")).header("Accept", "application/json, text/event-stream");
        post("mcp", accepts, ENV.get("INITIALIZE"));
        // Its stream is still open, and would keep it alive.
        System.exit(0);
    }
}
